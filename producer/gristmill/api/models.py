"""/v1/models: what lines may name in `model`."""

from __future__ import annotations

from fastapi import APIRouter

from gristmill.api.context import AnyCaller, UseApi
from gristmill.api.failures import not_found
from gristmill.api.objects import ModelList, ModelObject, model_object
from gristmill.ledger import models

router = APIRouter(prefix="/v1/models", tags=["Models"])


@router.get("")
def list_models(api: UseApi, caller: AnyCaller) -> ModelList:
    with api.ledger.read() as conn:
        served = models.list_served(conn, now=api.now)
    return ModelList(data=[model_object(model, model.name, api.prices) for model in served])


@router.get("/{model:path}")
def retrieve_model(model: str, api: UseApi, caller: AnyCaller) -> ModelObject:
    """By any of its names."""
    with api.ledger.read() as conn:
        served = models.list_served(conn, now=api.now)
    for found in served:
        if model in found.served_names:
            return model_object(found, model, api.prices)
    raise not_found("model", model, param="model")
