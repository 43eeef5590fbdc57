"""What a file would bring as a batch: output tokens, cost and time, from what was measured."""

from __future__ import annotations

from typing import Any

from gristmill.control.base import Control
from gristmill.ledger import paces, throughput, usage
from gristmill.ledger.estimates import Estimate
from gristmill.ledger.usage import DAY_S
from gristmill.models import Model
from gristmill.outcome import Usage
from gristmill.queues.base import BULK_LANE

_LOOK_BACK_DAYS = 30


def forecast(control: Control, estimate: Estimate, model: Model) -> dict[str, Any]:
    """As it is kept with the estimate; None for what nothing was measured of.

    Output tokens are as many as the tenant's rows on this model had on average lately, and at
    most what the lines allow; cost is from today's prices, as if nothing were cached. Time is what
    the tokens take at the fastest and slowest rate of the batches that ended lately and of the
    workers just now, once the batch's turn has come.
    """
    now = control.now
    num_rows = estimate.num_rows - estimate.num_refused
    with control.ledger.read() as conn:
        mean = usage.mean_output_tokens(
            conn, estimate.tenant_id, model.name, since_day=now // DAY_S - _LOOK_BACK_DAYS
        )
        rates = throughput.list_rates(conn, model.name, since=now - _LOOK_BACK_DAYS * DAY_S)
        rates += [
            pace.tokens_per_s
            for pace in paces.list_paces(conn, BULK_LANE)
            if pace.model_name == model.name and pace.tokens_per_s
        ]
    most = estimate.max_output_tokens
    expected = None if mean is None else min(round(mean * num_rows), most)
    seconds = None
    if rates:
        least = estimate.prompt_tokens + (expected or 0)
        seconds = {
            "min": least / max(rates),
            "max": (estimate.prompt_tokens + most) / min(rates),
            "num_measured": len(rates),
        }
    return {
        "output_tokens": {"expected": expected, "max": most},
        "cost": _cost(control, estimate, model, expected),
        "seconds": seconds,
    }


def _cost(
    control: Control, estimate: Estimate, model: Model, expected: int | None
) -> dict[str, Any] | None:
    """None for a model without a price."""
    price = control.prices.find(model.name)
    if price is None:
        return None
    least, most = (
        float(price.cost(Usage(estimate.prompt_tokens, num_tokens)))
        for num_tokens in (0, estimate.max_output_tokens)
    )
    mean = None if expected is None else float(price.cost(Usage(estimate.prompt_tokens, expected)))
    return {"currency": control.prices.currency, "min": least, "expected": mean, "max": most}
