"""When a budget is used up, and what Shards under way are expected to take of it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from mill import Mill
from pipeline import Bench

from gristmill.control.budget import (
    MIN_ROWS,
    Budget,
    budget_options,
    cost_of,
    expected_usage,
    price_options,
)
from gristmill.errors import BatchInvalid
from gristmill.ledger import shards
from gristmill.outcome import Usage
from gristmill.prices import NO_PRICES, Price, PriceTable

PRICE = Price(Decimal(1), Decimal("0.5"), Decimal(4))


def test_a_budget_is_used_up_by_tokens_or_by_money_whichever_is_first() -> None:
    both = Budget(1000, Decimal("0.001"), PRICE)

    assert not Budget().is_limited and not Budget().is_used_up(Usage(10**12, 10**12))
    assert both.is_limited and not both.is_used_up(Usage(500, 100))
    assert both.is_used_up(Usage(900, 100)) and both.is_used_up(Usage(200, 200))
    # Cached tokens cost half: 600 * 0.5 + 100 * 4 = 700 millionths.
    assert not both.is_used_up(Usage(600, 100, 600))


def test_what_is_under_way_is_guessed_until_answers_have_shown_how_long_they_are(
    bench: Bench,
) -> None:
    mill = Mill(bench, tokens_per_s=500)
    mill.submit("acme", "one", num_jobs=60, answer_tokens=900, max_tokens=100)

    def expected() -> Usage:
        with bench.ledger.read() as conn:
            return expected_usage(
                mill.batch("acme", "one"), shards.list_sent(conn, "acme", "one")[:1]
            )

    mill.run(1)
    first = expected()
    mill.run(4 * MIN_ROWS)
    later = expected()

    assert (first.prompt_tokens, first.completion_tokens) == (1200, 300)
    assert later.completion_tokens > later.prompt_tokens * 2
    assert cost_of(mill.batch("acme", "one")) is None


def test_a_batch_keeps_the_price_that_it_began_with(bench: Bench) -> None:
    batch = Mill(bench).submit("acme", "one", num_jobs=1, price=PRICE.to_wire(), max_cost="1")

    assert price_options(PriceTable({"fake": PRICE}), batch, "fake") == {"price": PRICE.to_wire()}
    with pytest.raises(BatchInvalid) as invalid:
        price_options(NO_PRICES, batch, "fake")
    assert invalid.value.errors[0].code == "price_unknown"
    assert cost_of(batch) == 0


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({}, None),
        ({"max_total_tokens": 10**9}, 60_000),
        ({"max_total_tokens": 80_000}, 10_000),
        ({"max_total_tokens": 500}, 1875),
        ({"max_cost": "0.32"}, 10_000),  # of answers, which cost most
        ({"max_cost": "0.32", "max_total_tokens": 40_000}, 5000),
    ],
)
def test_a_small_budget_makes_small_shards_so_that_little_more_is_used(
    bench: Bench, asked: dict[str, Any], size: int | None
) -> None:
    batch = Mill(bench).submit("acme", "one", num_jobs=1, **asked)

    options = budget_options(PriceTable({"fake": PRICE}), batch, "fake", shard_max_tokens=60_000)

    assert options.get("shard_max_tokens") == size
