"""Finds a model for this machine: which device and dtype it will run with belongs to its pin."""

from __future__ import annotations

from gristmill.compute import convert_gguf, find_device, find_dtype
from gristmill.models import Model, find_model
from gristmill.settings import Settings


def find_local_model(
    name: str,
    *,
    settings: Settings,
    revision: str | None,
    served_names: tuple[str, ...] = (),
) -> tuple[Model, str]:
    """The model, and the device ("cpu" or "cuda") that it runs on. Raises what find_model does."""
    device = find_device(settings.device)
    model = find_model(
        name,
        settings=settings,
        revision=revision,
        dtype=find_dtype(settings.dtype, device),
        convert_gguf=convert_gguf,
        served_names=served_names,
    )
    return model, device
