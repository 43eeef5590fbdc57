"""What a batch may use, what it has used, and what it still needs: arithmetic, without a Ledger.

A budget is a graceful stop. Shards are sent while those under way are expected to leave some of it,
so at the end one is under way at a time; when the answers that were accepted have used it up, the
batch is frozen. So it is exceeded by what is under way then: at most one Shard more than was
expected to fit, and that answers turn out longer than they did before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gristmill.errors import BatchInvalid, LineError
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.outcome import Usage
from gristmill.prices import PER_TOKENS, Price, PriceTable

#: So many rows must have their answer before their mean says how long answers are.
MIN_ROWS = 20
#: A Shard takes this part of a budget, yet is no smaller than this part of what it may be.
_SHARDS_OF_BUDGET = 8
_SMALLEST_SHARD = 32


@dataclass(frozen=True, slots=True)
class Budget:
    """No limit where it is None. `price` is that of the batch's model."""

    max_total_tokens: int | None = None
    max_cost: Decimal | None = None
    price: Price | None = None

    @property
    def is_limited(self) -> bool:
        return self.max_total_tokens is not None or self.max_cost is not None

    def is_used_up(self, usage: Usage) -> bool:
        if self.max_total_tokens is not None:
            num_tokens = usage.prompt_tokens + usage.completion_tokens
            if num_tokens >= self.max_total_tokens:
                return True
        if self.max_cost is None:
            return False
        assert self.price is not None, "a batch with a limit of its cost has a price"
        return self.price.cost(usage) >= self.max_cost


def budget_of(batch: Batch) -> Budget:
    max_cost = None if batch.max_cost is None else Decimal(batch.max_cost)
    return Budget(batch.max_total_tokens, max_cost, price_of(batch))


def budget_options(
    prices: PriceTable, batch: Batch, model_name: str, *, shard_max_tokens: int
) -> dict[str, Any]:
    """What is kept with a batch that is about to be read: its price, and how large its Shards are.

    Raises BatchInvalid like `price_options`.
    """
    options = price_options(prices, batch, model_name)
    price = None if "price" not in options else Price.from_wire(options["price"])
    num_tokens = _tokens_of(budget_of(batch), price)
    if num_tokens is not None:
        least = max(shard_max_tokens // _SMALLEST_SHARD, 1)
        share = num_tokens // _SHARDS_OF_BUDGET
        options["shard_max_tokens"] = min(max(share, least), shard_max_tokens)
    return options


def _tokens_of(budget: Budget, price: Price | None) -> int | None:
    """As many as it is good for at least; None for as many as you like."""
    limits = [] if budget.max_total_tokens is None else [budget.max_total_tokens]
    dearest = max(price.prompt, price.completion) if price else Decimal(0)
    if budget.max_cost is not None and dearest:
        limits.append(int(budget.max_cost * PER_TOKENS / dearest))
    return min(limits, default=None)


def price_options(prices: PriceTable, batch: Batch, model_name: str) -> dict[str, Any]:
    """What is kept with a batch of the price of its model, so that it does not change midway.

    Raises BatchInvalid when the batch has a limit of its cost and the model no price.
    """
    price = prices.find(model_name)
    if price is not None:
        return {"price": price.to_wire()}
    if batch.max_cost is None:
        return {}
    message = (
        f"The model {model_name} has no price here, so that max_cost cannot be kept. Give "
        "max_total_tokens instead, or ask whoever runs this service for a price."
    )
    raise BatchInvalid([LineError("price_unknown", message, param="max_cost")], 1)


def price_of(batch: Batch) -> Price | None:
    """The price that the batch was pinned to with its model, if there is one."""
    found = batch.options.get("price")
    return None if found is None else Price.from_wire(found)


def cost_of(batch: Batch) -> Decimal | None:
    """Of what was accepted so far; None for a model without a price."""
    price = price_of(batch)
    return None if price is None else price.cost(batch.usage)


def expected_usage(batch: Batch, under_way: Iterable[ShardRow]) -> Usage:
    """What Shards are expected to use of the budget before they are done."""
    usage = Usage()
    for shard in under_way:
        num_left = shard.num_jobs - shard.num_accepted
        num_rows = shard.num_rows * num_left // shard.num_jobs
        if batch.completed >= MIN_ROWS:
            completion = batch.usage.completion_tokens * num_rows // batch.completed
            prompt = batch.usage.prompt_tokens * num_rows // batch.completed
        else:
            num_answered = shard.num_expected_tokens - shard.num_prompt_tokens
            completion = num_answered * num_rows // shard.num_jobs
            prompt = shard.num_prompt_tokens * num_rows // shard.num_jobs
        usage += Usage(prompt, completion)
    return usage


def tokens_left(
    *, expected_tokens: int, total: int, completed: int, failed: int, used_tokens: int
) -> float:
    """What the rows of a batch that have no answer yet are expected to take."""
    num_left = total - completed - failed
    if num_left <= 0:
        return 0.0
    if completed >= MIN_ROWS:
        return used_tokens / completed * num_left
    return expected_tokens * num_left / (num_left + completed)
