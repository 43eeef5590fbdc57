"""The price table: exact sums, and files that make no sense."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gristmill.errors import UsageError
from gristmill.outcome import Usage
from gristmill.prices import Price, PriceTable, read_prices


def test_sums_are_exact_and_cached_tokens_cost_less() -> None:
    price = Price(Decimal("0.1"), Decimal("0.05"), Decimal("0.4"))

    assert price.cost(Usage(3, 1, 2)) == Decimal("0.0000006")
    assert price.cost(Usage(10**12, 10**12)) == Decimal(500_000)
    assert Price.from_wire(price.to_wire()) == price


def test_a_table_has_a_price_for_each_model_or_for_all_others(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(
        '{"models": {"M": {"prompt": 0.1, "completion": 0.3}, "*": {"prompt": 1, "completion": 2}}}'
    )

    table = read_prices(path)

    assert table.find("M") == Price(Decimal("0.1"), Decimal("0.1"), Decimal("0.3"))
    assert table.find("N") == Price(Decimal(1), Decimal(1), Decimal(2))
    assert table.currency == "USD" and table
    assert read_prices(None) == PriceTable() and not read_prices(None)
    assert PriceTable().find("M") is None


def test_prices_that_make_no_sense_end_the_start_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    for text, words in (
        ("{", "cannot be read as JSON"),
        ("[]", "is no price table"),
        ('{"models": {}, "other": 1}', "is no price table"),
        ('{"models": {"M": {"prompt": 1}}}', "name prompt, completion"),
        ('{"models": {"M": {"prompt": 1, "completion": -1}}}', "completion is -1"),
        ('{"models": {"M": {"prompt": true, "completion": 1}}}', "prompt is True"),
        ('{"models": {"M": {"prompt": NaN, "completion": 1}}}', "prompt is nan"),
        ('{"models": {}, "currency": 1}', "the currency 1"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=words):
            read_prices(path)
    with pytest.raises(UsageError, match="No such file"):
        read_prices(tmp_path / "missing.json")
