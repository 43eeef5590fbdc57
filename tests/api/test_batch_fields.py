"""What goes beyond OpenAI's fields: priority, budgets, windows, progress, all as extra_body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import openai
import pytest
from house import House, make_lines
from openai.types import Batch

PRICES = {"currency": "EUR", "models": {"M": {"prompt": 1, "cached": 0.5, "completion": 4}}}


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A service whose models have prices."""
    folder = tmp_path_factory.mktemp("prices")
    (folder / "prices.json").write_text(json.dumps(PRICES))
    with House.opened(prices=folder / "prices.json", dispatch_window_shards=1) as house:
        yield house


def extra(batch: Batch) -> dict[str, Any]:
    """The fields that the official client does not know, which it keeps."""
    return dict(batch.model_extra or {})


def test_extensions_are_echoed_and_have_defaults(priced: House) -> None:
    asked = {"priority": 7, "max_total_tokens": 10**9, "max_cost": 2.5}

    plain = priced.create(make_lines(2))
    batch = priced.create(make_lines(2), extra_body=asked)
    plain, ended = priced.wait(plain), priced.wait(batch)

    assert {name: extra(batch)[name] for name in asked} == asked
    assert {name: extra(ended)[name] for name in asked} == asked
    unset = {"priority": 0, "max_total_tokens": None, "max_cost": None}
    assert {name: extra(plain)[name] for name in asked} == unset
    assert ended.request_counts is not None and ended.request_counts.completed == 2
    usage = ended.usage
    assert usage is not None
    num_cached = usage.input_tokens_details.cached_tokens
    cost = (usage.input_tokens - num_cached) + 0.5 * num_cached + 4 * usage.output_tokens
    assert extra(ended)["cost"] == pytest.approx(cost / 1e6, rel=1e-9)
    assert extra(ended)["progress"] is None


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"priority": 101}, "less than or equal to 100"),
        ({"priority": "high"}, "valid integer"),
        ({"max_total_tokens": 0}, "greater than or equal to 1"),
        ({"max_total_tokens": 1.5}, "valid integer"),
        ({"max_cost": 0}, "greater than 0"),
        ({"max_cost": -1}, "greater than 0"),
        ({"max_cost": "1"}, "valid number"),
        ({"completion_window": "1 week"}, "write a number and"),
        ({"completion_window": "31d"}, "at most 30d"),
    ],
)
def test_extensions_that_cannot_be_meant_are_refused_by_name(
    priced: House, asked: dict[str, Any], words: str
) -> None:
    file = priced.upload(make_lines(1))

    with pytest.raises(openai.BadRequestError, match=words) as refusal:
        priced.client().batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
            extra_body=asked,
        )

    assert refusal.value.param == next(iter(asked))


@pytest.mark.parametrize(
    ("window", "seconds"), [("90s", 90), ("1h", 3600), ("2h", 7200), ("7d", 604800)]
)
def test_other_windows_than_24h_are_kept(priced: House, window: str, seconds: int) -> None:
    batch = priced.create(make_lines(1), completion_window=window)

    assert batch.completion_window == window
    assert batch.expires_at == batch.created_at + seconds


def test_a_limit_of_the_cost_needs_a_price(house: House) -> None:
    with pytest.raises(openai.BadRequestError, match="GRISTMILL_PRICES") as refusal:
        house.create(make_lines(1), extra_body={"max_cost": 1.0})

    assert (refusal.value.param, refusal.value.code) == ("max_cost", "price_unknown")


def test_a_limit_of_the_cost_fails_a_batch_whose_model_has_no_price(priced: House) -> None:
    with patch("gristmill.prices.PriceTable.find", return_value=None):
        batch = priced.wait(priced.create(make_lines(1), extra_body={"max_cost": 1.0}))

    assert batch.status == "failed" and batch.errors is not None and batch.errors.data
    error = batch.errors.data[0]
    assert (error.code, error.param) == ("price_unknown", "max_cost")
    assert "max_total_tokens" in (error.message or "")


def test_a_budget_that_is_used_up_keeps_what_is_finished(priced: House) -> None:
    priced.pause_midway(8)  # of ten tokens or more, prompts included
    batch = priced.wait(priced.create(make_lines(60), extra_body={"max_total_tokens": 60}))
    priced.engine.resume()

    output, errors = priced.lines(batch.output_file_id), priced.lines(batch.error_file_id)
    assert batch.status == "completed" and batch.request_counts is not None
    assert batch.request_counts.completed == len(output) >= 1
    assert batch.request_counts.failed == len(errors) >= 1
    assert len(output) + len(errors) == 60
    assert {line["error"]["code"] for line in errors} == {"budget_exceeded"}
    assert batch.usage is not None and batch.usage.total_tokens >= 60


def test_progress_says_what_a_batch_waits_for_and_until_when(priced: House) -> None:
    priced.pause_ingest()
    waiting = priced.create(make_lines(200))  # far more than there is time for
    priced.resume_ingest()
    with priced.slow():
        running = priced.wait(
            waiting, lambda b: b.request_counts and b.request_counts.completed >= 4
        )
        behind = priced.wait(
            priced.create(make_lines(40), extra_body={"priority": -5}),
            lambda b: extra(b)["progress"]["phase"] == "queued",
        )
        measured = priced.wait(
            running, lambda b: (extra(b)["progress"] or {}).get("completes_at") or b.completed_at
        )
        progress = extra(measured)["progress"]
        for batch in (running, behind):
            priced.client().batches.cancel(batch.id)
            priced.wait(batch)

    assert extra(waiting)["progress"]["phase"] == "validating"
    assert extra(waiting)["progress"]["completes_at"] is None
    assert progress["phase"] == "running" and "tokens/s" in progress["detail"]
    assert progress["tokens_per_second"] > 0
    assert progress["completes_at"] >= measured.created_at
    assert extra(behind)["progress"]["batches_ahead"] >= 1


def test_the_same_key_for_another_budget_is_no_repetition(priced: House) -> None:
    file, client = priced.upload(make_lines(1)), priced.client()

    def create(limit: int) -> Batch:
        return client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
            extra_body={"max_total_tokens": limit},
            extra_headers={"Idempotency-Key": "budget-1"},
        )

    first, again = create(5000), create(5000)

    assert first.id == again.id
    with pytest.raises(openai.BadRequestError) as refusal:
        create(6000)
    assert refusal.value.code == "idempotency_key_reused"
