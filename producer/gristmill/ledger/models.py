"""Queries about the models that can be asked for: those that an ingest has told of lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from gristmill.ledger.schema import models

#: A model that no process has told of for so long is not served any more.
GONE_AFTER_S = 300


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the catalogue. Lines may call it by any of `served_names`."""

    name: str
    revision: str
    served_names: tuple[str, ...]
    max_model_len: int
    created_at: int
    seen_at: int
    #: By language; None until the tokenizer is loaded.
    tokens_per_word: Mapping[str, float] | None = None


def tell(conn: Connection, model: ServedModel) -> None:
    """The model is served just now."""
    values = {
        "revision": model.revision,
        "served_names": list(model.served_names),
        "max_model_len": model.max_model_len,
        "seen_at": model.seen_at,
        "tokens_per_word": model.tokens_per_word,
    }
    if conn.execute(update(models).where(models.c.name == model.name).values(**values)).rowcount:
        return
    # Somebody else may be a moment faster.
    with suppress(IntegrityError), conn.begin_nested():
        conn.execute(insert(models).values(name=model.name, created_at=model.created_at, **values))


def list_served(conn: Connection, *, now: int) -> Sequence[ServedModel]:
    """By name."""
    query = select(models).where(models.c.seen_at > now - GONE_AFTER_S).order_by(models.c.name)
    return [
        ServedModel(**dict(row) | {"served_names": tuple(row["served_names"])})
        for row in conn.execute(query).mappings()
    ]
