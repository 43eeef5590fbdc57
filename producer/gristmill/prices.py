"""What tokens of a model cost: a table that the operator writes, and exact sums of money.

`GRISTMILL_PRICES` names a JSON file; prices are per million tokens, `*` stands for all other
models, and `cached` (prompt tokens found in the prefix cache) is `prompt` where it is left out:

    {"currency": "USD", "models": {"smollm2-135m": {"prompt": 0.1, "cached": 0.05,
                                                    "completion": 0.4}, "*": {...}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from gristmill.errors import UsageError
from gristmill.outcome import Usage

__all__ = ["NO_PRICES", "PER_TOKENS", "Price", "PriceTable", "read_prices"]

#: Prices are for so many.
PER_TOKENS = 1_000_000
_KINDS = ("prompt", "cached", "completion")
_MAX_PRICE = Decimal(10**9)
_ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class Price:
    """Of one model, per million tokens. Prompt tokens that are `cached` cost that instead."""

    prompt: Decimal
    cached: Decimal
    completion: Decimal

    def cost(self, usage: Usage) -> Decimal:
        """Exact, in the currency of the table."""
        num_computed = usage.prompt_tokens - usage.cached_tokens
        return (
            self.prompt * num_computed
            + self.cached * usage.cached_tokens
            + self.completion * usage.completion_tokens
        ) / PER_TOKENS

    def to_wire(self) -> dict[str, str]:
        """For a document that is JSON."""
        return {kind: str(getattr(self, kind)) for kind in _KINDS}

    @classmethod
    def from_wire(cls, document: Mapping[str, str]) -> Price:
        return cls(**{kind: Decimal(document[kind]) for kind in _KINDS})


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by the name of the model; nothing has a price in an empty one."""

    models: Mapping[str, Price] = field(default_factory=dict)
    currency: str = "USD"

    def find(self, model_name: str) -> Price | None:
        """The price of a model, by its name in the catalogue."""
        return self.models.get(model_name) or self.models.get(_ANY_MODEL)

    def __bool__(self) -> bool:
        return bool(self.models)


NO_PRICES = PriceTable()


def read_prices(path: Path | None) -> PriceTable:
    """The table in a file; an empty one without a file. Raises UsageError."""
    if path is None:
        return NO_PRICES
    try:
        document = json.loads(path.expanduser().read_text("utf-8"), parse_float=Decimal)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"GRISTMILL_PRICES: {path} cannot be read as JSON: {error}") from error
    models = document.get("models") if isinstance(document, dict) else None
    if not isinstance(models, dict) or not document.keys() <= {"currency", "models"}:
        raise UsageError(
            f"GRISTMILL_PRICES: {path} is no price table. Write "
            '{"currency": "USD", "models": {"NAME": {"prompt": 0.1, "completion": 0.4}}}.'
        )
    currency = document.get("currency", "USD")
    if not isinstance(currency, str) or not currency:
        raise UsageError(f"GRISTMILL_PRICES: {path}: the currency {currency!r} is no text.")
    return PriceTable({name: _price(path, name, found) for name, found in models.items()}, currency)


def _price(path: Path, name: str, found: Any) -> Price:
    where = f"GRISTMILL_PRICES: {path}: the prices of {name!r}"
    if not isinstance(found, dict) or not {"prompt", "completion"} <= found.keys() <= {*_KINDS}:
        raise UsageError(
            f"{where} are {found!r}: name prompt, completion and, if you like, cached, and "
            "nothing else; each is a number per million tokens."
        )
    values = {**found, "cached": found.get("cached", found["prompt"])}
    for kind, value in values.items():
        is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= _MAX_PRICE:
            raise UsageError(f"{where}: {kind} is {value!r}, and must be a number from 0 on.")
    return Price(**{kind: Decimal(value) for kind, value in values.items()})
