"""Workers whose model has the name of another one: what they are for, and what tells them apart."""

from __future__ import annotations

from collections.abc import Iterable

from gristmill.pools import is_of_model
from gristmill.types import ModelPin


def is_namesake(model: ModelPin, wanted: Iterable[ModelPin]) -> bool:
    """Whether models of this name are wanted, and this is none of them."""
    named = [pin for pin in wanted if pin.name == model.name]
    return bool(named) and not any(is_of_model(model, pin) for pin in named)


def tell_namesake(wanted: ModelPin, alive: Iterable[ModelPin]) -> str:
    """A sentence about workers that call theirs as what is wanted, and have something else; empty
    where one has it, or none has the name."""
    named = sorted((pin for pin in alive if pin.name == wanted.name), key=repr)
    if not is_namesake(wanted, named):
        return ""
    other = named[0]
    differences = [
        f"{what} {theirs[:12]} instead of {ours[:12]}"
        for what, theirs, ours in (
            ("revision", other.base_revision, wanted.base_revision),
            ("adapter", other.adapter or "none", wanted.adapter or "none"),
            ("tokenizer", other.tokenizer_hash, wanted.tokenizer_hash),
            ("dtype", other.dtype, wanted.dtype),
        )
        if theirs != ours
    ]
    return (
        f"Workers that call theirs {wanted.name} are there, but with {' and '.join(differences)}, "
        "and take none of its rows. Start one with the same files and GRISTMILL_DTYPE as the "
        "control side had when the batch was read."
    )
