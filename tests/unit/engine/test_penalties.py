"""Penalties: the formula, token by token, and counts that depend on the ids alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill.types import SamplingParams
from gristmill_worker.engine.penalties import TokenCounts, apply_penalties

VOCAB_SIZE = 50


def penalised(
    logits: torch.Tensor, prompt: list[int], output: list[int], **params: Any
) -> torch.Tensor:
    counts = TokenCounts(len(prompt))
    counts.take([*prompt, *output])
    changed = logits.clone()[None]
    apply_penalties(changed, [(0, SamplingParams(8, **params), counts)])
    return changed[0]


@given(
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=90),
    output=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=90),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    repetition=st.floats(0.5, 2),
    seed=st.integers(0, 99),
)
def test_each_token_loses_what_the_formula_says(
    prompt: list[int],
    output: list[int],
    frequency: float,
    presence: float,
    repetition: float,
    seed: int,
) -> None:
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 5
    generated = Counter(output)

    changed = penalised(
        logits,
        prompt,
        output,
        frequency_penalty=frequency,
        presence_penalty=presence,
        repetition_penalty=repetition,
    )

    for token_id, logit in enumerate(logits.tolist()):
        if token_id in {*prompt, *output}:
            logit = logit / repetition if logit > 0 else logit * repetition
        if token_id in generated:
            logit -= generated[token_id] * frequency + presence
        assert float(changed[token_id]) == pytest.approx(logit, abs=1e-4)


def test_B25_frequency_and_presence_leave_the_prompt_alone() -> None:
    logits = torch.ones(VOCAB_SIZE)

    first = penalised(logits, [3, 3, 4], [], frequency_penalty=1.5, presence_penalty=0.5)
    later = penalised(logits, [3, 3, 4], [3, 7, 7], frequency_penalty=1.5, presence_penalty=0.5)

    assert first.equal(logits)
    assert later[3] == 1 - 2.0 and later[7] == 1 - 3.5 and later[4] == 1


@given(
    ids=st.lists(st.integers(0, 200), min_size=1, max_size=300),
    cuts=st.lists(st.integers(1, 300), max_size=5),
)
def test_counts_are_the_same_however_the_ids_arrive(ids: list[int], cuts: list[int]) -> None:
    at_once, in_pieces = TokenCounts(10), TokenCounts(10)
    at_once.take(ids)
    for cut in sorted(cuts):
        in_pieces.take(ids[:cut])
    in_pieces.take(ids)

    assert at_once.ids.tolist() == in_pieces.ids.tolist() == list(dict.fromkeys(ids))
    assert at_once.counts.tolist() == in_pieces.counts.tolist()
    assert at_once.counts.sum() == max(0, len(ids) - 10)
