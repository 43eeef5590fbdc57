"""Figures and their intervals against plain loops over the rows."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from gristmill.scores.figures import Classes, Figures, Ratio, bits, perplexity
from gristmill.scores.plot import reliability_plot

LABELS = ("a", "b", "c")


def graded(num_rows: int, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    rows = []
    for _ in range(num_rows):
        gold, predicted = chance.randrange(3), chance.randrange(3)
        rows.append(
            {
                "confidence": chance.choice([0.0, 0.1, 0.35, 0.7, 1.0, chance.random()]),
                "is_correct": gold == predicted,
                "prediction_idx": predicted,
                "gold_idx": gold,
                "logprob": chance.choice([None, -chance.random()]),
                "num_tokens": chance.randrange(1, 9),
            }
        )
    return rows


def findings_of(rows: list[dict[str, Any]], figures: Figures, **options: Any) -> Any:
    for row in rows:
        figures.add(row)
    return figures.findings(**options)


def values(findings: Any) -> dict[str, float | None]:
    return {one.name: one.value for one in findings.figures}


def plain_ece(rows: list[dict[str, Any]]) -> float:
    """Guo et al. (2017), equation 3, as it stands there: bins ((m-1)/M, m/M]."""
    total = 0.0
    for m in range(1, 11):
        low = (m - 1) / 10 if m > 1 else -1.0
        inside = [row for row in rows if low < row["confidence"] <= m / 10]
        if inside:
            accuracy = sum(row["is_correct"] for row in inside) / len(inside)
            confidence = sum(row["confidence"] for row in inside) / len(inside)
            total += len(inside) / len(rows) * abs(accuracy - confidence)
    return total


def plain_f1(rows: list[dict[str, Any]]) -> float:
    scores = []
    for label in range(3):
        hits = sum(row["gold_idx"] == label == row["prediction_idx"] for row in rows)
        named = sum(row["prediction_idx"] == label for row in rows)
        there = sum(row["gold_idx"] == label for row in rows)
        scores.append(2 * hits / (named + there))
    return sum(scores) / 3


def test_figures_are_those_of_plain_loops_over_the_rows() -> None:
    rows = graded(300)
    ratios = {
        "accuracy": Ratio("is_correct"),
        "perplexity": Ratio("logprob", "num_tokens", perplexity),
        "bits": Ratio("logprob", "num_tokens", bits),
    }

    found = findings_of(rows, Figures(ratios, Classes(LABELS)), num_resamples=10)

    counted = [row for row in rows if row["logprob"] is not None]
    mean = sum(row["logprob"] for row in counted) / sum(row["num_tokens"] for row in counted)
    assert found.num_rows == 300
    assert values(found) == pytest.approx(
        {
            "accuracy": sum(row["is_correct"] for row in rows) / 300,
            "perplexity": math.exp(-mean),
            "bits": -mean / math.log(2),
            "calibration error (ECE)": plain_ece(rows),
            "F1, mean over answers": plain_f1(rows),
        }
    )
    assert sum(one.num_rows for one in found.reliability) == 300
    assert found.confusion.counts == tuple(
        tuple(
            sum(row["gold_idx"] == gold and row["prediction_idx"] == other for row in rows)
            for other in range(3)
        )
        for gold in range(3)
    )
    assert sum(filter(None, found.confusion.f1)) / 3 == pytest.approx(plain_f1(rows))


def test_intervals_are_those_of_resampled_rows_and_the_seed_repeats_them() -> None:
    rows = graded(60)
    chance = np.random.default_rng(5)
    drawn = [[rows[i] for i in chance.integers(0, 60, 60)] for _ in range(200)]
    plain = {
        "accuracy": [sum(row["is_correct"] for row in sample) / 60 for sample in drawn],
        "calibration error (ECE)": [plain_ece(sample) for sample in drawn],
    }

    first, second = (
        findings_of(
            rows,
            Figures({"accuracy": Ratio("is_correct")}, Classes(None)),
            num_resamples=200,
            seed=5,
        )
        for _ in range(2)
    )

    assert first == second
    for one in first.figures:
        low, high = np.quantile(plain[one.name], [0.025, 0.975])
        assert (one.low, one.high) == pytest.approx((low, high))


def test_an_interval_holds_the_true_share_about_as_often_as_it_says() -> None:
    chance = random.Random(1)
    held = 0
    for seed in range(100):
        rows = [{"is_correct": chance.random() < 0.3} for _ in range(100)]
        found = findings_of(
            rows, Figures({"accuracy": Ratio("is_correct")}), num_resamples=200, seed=seed
        )
        held += found.figures[0].low <= 0.3 <= found.figures[0].high
    assert 85 <= held <= 100


def test_no_row_or_one_row_has_no_interval() -> None:
    ratios = {"accuracy": Ratio("is_correct")}

    none = findings_of([], Figures(ratios, Classes(LABELS)))
    one = findings_of(graded(1), Figures(ratios))

    assert values(none) == {"accuracy": None} and none.confusion is None
    assert (one.figures[0].low, one.figures[0].high) == (None, None)


def test_a_reliability_plot_is_a_picture_and_the_same_each_time() -> None:
    found = findings_of(graded(50), Figures({}, Classes(None)), num_resamples=0)

    picture = reliability_plot(found.reliability)

    assert picture.startswith(b"\x89PNG") and picture == reliability_plot(found.reliability)
