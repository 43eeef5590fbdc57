"""Draws against exact probabilities, which are computed here from the rules of the README alone.

Each case draws its row many times in one batch with rows of other parameters. The probabilities are
worked out token by token in float64, by other means than the Sampler's.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from gristmill.types import SamplingParams
from gristmill_worker.engine.penalties import TokenCounts
from gristmill_worker.engine.sampler import SamplingRow, sample

VOCAB_SIZE = 400
PROMPT = [5, 6, 7, 7, 30]
OUTPUT = [7, 8, 8, 8, 31]
LOGITS = (torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(11)) * 2.5).tolist()
#: The tokens that parameters speak of are likely ones, so that the effect can be seen.
for _place, _token_id in enumerate([*PROMPT, *OUTPUT]):
    LOGITS[_token_id] = 6.0 - _place / 4
BIAS = ((5, -3.0), (9, 4.0), (31, 100.0), (40, -100.0))

CASES: dict[str, dict[str, Any]] = {
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1.6": {"temperature": 1.6},
    "top_p": {"top_p": 0.8},
    "top_k": {"top_k": 7},
    "min_p": {"min_p": 0.05},
    "frequency_penalty": {"frequency_penalty": 0.6},
    "presence_penalty": {"presence_penalty": 1.2},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "negative penalties": {"frequency_penalty": -0.5, "repetition_penalty": 0.8},
    "logit_bias": {"logit_bias": BIAS[:2]},
    "min_tokens": {"forbidden_ids": (5, 7, 8)},
    "all": {
        "temperature": 1.3,
        "top_p": 0.9,
        "top_k": 60,
        "min_p": 0.01,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": BIAS[:2],
        "forbidden_ids": (6,),
    },
}


def exact_probabilities(forbidden_ids: tuple[int, ...] = (), **params: Any) -> dict[int, float]:
    """The rules, one after the other, on a list of logits."""
    p = SamplingParams(8, **params)
    logits = [float(logit) for logit in LOGITS]
    for token_id in {*PROMPT, *OUTPUT}:
        positive = logits[token_id] > 0
        logits[token_id] *= 1 / p.repetition_penalty if positive else p.repetition_penalty
    for token_id, count in Counter(OUTPUT).items():
        logits[token_id] -= count * p.frequency_penalty + p.presence_penalty
    for token_id, bias in p.logit_bias:
        logits[token_id] += bias
    ranked = sorted(
        ((logit / p.temperature, i) for i, logit in enumerate(logits) if i not in forbidden_ids),
        reverse=True,
    )
    if p.top_k:
        ranked = ranked[: p.top_k]
    best = ranked[0][0]
    total = math.fsum(math.exp(x - best) for x, _ in ranked)
    nucleus, mass = [], 0.0
    for x, i in ranked:
        if mass >= p.top_p:
            break
        nucleus.append((x, i))
        mass += math.exp(x - best) / total
    kept = {i: math.exp(x - best) for x, i in nucleus if math.exp(x - best) >= p.min_p}
    total = math.fsum(kept.values())
    return {i: weight / total for i, weight in kept.items()}


def p_value(observed: Counter[int], expected: dict[int, float], num_draws: int) -> float:
    """Of a chi-square test (Wilson-Hilferty); rare tokens are put together."""
    pairs, rare_observed, rare_expected = [], 0, 0.0
    for token_id, probability in expected.items():
        if probability * num_draws < 10:
            rare_observed += observed[token_id]
            rare_expected += probability * num_draws
        else:
            pairs.append((observed[token_id], probability * num_draws))
    if rare_expected:
        pairs.append((rare_observed, max(rare_expected, 1e-9)))
    chi_square = sum((o - e) ** 2 / e for o, e in pairs)
    freedom = len(pairs) - 1
    z = (chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))
    return math.erfc(z / math.sqrt(2 * 2 / (9 * freedom))) / 2


def draws(num_draws: int, forbidden_ids: tuple[int, ...], params: dict[str, Any]) -> Counter[int]:
    """Draws of one row under many seeds, each step with rows of all other cases beside it."""
    counts = TokenCounts(len(PROMPT))
    counts.take([*PROMPT, *OUTPUT])
    company = [
        SamplingRow(SamplingParams(8, seed=1, **_without_forbidden(other)), 3, counts)
        for other in CASES.values()
    ]
    at_once, found = 500, Counter[int]()
    for begin in range(0, num_draws, at_once):
        mine = [
            SamplingRow(
                SamplingParams(8, seed=seed, **params),
                len(OUTPUT),
                counts if SamplingParams(8, **params).has_penalties else None,
                forbidden_ids,
            )
            for seed in range(begin, begin + at_once)
        ]
        rows = [*company, *mine, *company]
        picked = sample(torch.tensor(LOGITS).repeat(len(rows), 1), rows)
        found.update(i for i in picked[len(company) : len(company) + at_once] if isinstance(i, int))
    return found


def _without_forbidden(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "forbidden_ids"}


@pytest.mark.parametrize("num_draws", [20_000, pytest.param(120_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_exact_probabilities(name: str, num_draws: int) -> None:
    case = CASES[name]
    forbidden_ids, params = case.get("forbidden_ids", ()), _without_forbidden(case)
    expected = exact_probabilities(forbidden_ids, **params)

    found = draws(num_draws, forbidden_ids, params)

    assert sum(found.values()) == num_draws
    assert not found.keys() - expected.keys(), "a token was drawn that the limits exclude"
    assert p_value(found, expected, num_draws) > 1e-4


def test_the_test_would_see_a_parameter_that_is_ignored() -> None:
    found = draws(10_000, (), {})

    for name, case in CASES.items():
        expected = exact_probabilities(case.get("forbidden_ids", ()), **_without_forbidden(case))
        excluded = found.keys() - expected.keys()
        assert excluded or p_value(found, expected, 10_000) < 1e-9, name
