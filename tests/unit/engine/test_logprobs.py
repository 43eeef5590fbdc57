"""Log-probabilities: the model's own, finite, for the rows that ask."""

from __future__ import annotations

import math

import pytest
import torch

from gristmill.types import SamplingParams
from gristmill_worker.engine.logprobs import ModelDistribution
from gristmill_worker.engine.sampler import SamplingRow, sample

VOCAB_SIZE = 1000


def some_logits(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(3)) * 4


def test_values_are_those_of_a_log_softmax_before_the_sampler_changed_anything() -> None:
    logits = some_logits(7)
    expected = logits.double().log_softmax(-1)
    params = [
        SamplingParams(8, logprobs=(None, 0, 5, 20)[i % 4], temperature=0.5) for i in range(7)
    ]
    biased = SamplingParams(8, logprobs=2, temperature=0.0, logit_bias=((11, 100.0),))
    params[6] = biased

    distribution = ModelDistribution(logits, params)
    picked = [int(i) for i in sample(logits, [SamplingRow(p, 0) for p in params])]  # type: ignore[arg-type]
    reports = distribution.logprobs(picked)

    assert picked[6] == 11
    for i, report in enumerate(reports):
        if params[i].logprobs is None:
            assert report is None
            continue
        assert report is not None and len(report.top) == params[i].logprobs
        assert report.logprob == pytest.approx(float(expected[i, picked[i]]), abs=1e-6)
        values, ids = expected[i].topk(max(1, len(report.top)))
        assert [token_id for token_id, _ in report.top] == ids.tolist()[: len(report.top)]
        assert [value for _, value in report.top] == pytest.approx(
            values.tolist()[: len(report.top)], abs=1e-6
        )


def test_B63_impossible_tokens_are_left_out() -> None:
    logits = torch.full((1, VOCAB_SIZE), float("-inf"))
    logits[0, [4, 9]] = torch.tensor([1.0, 2.0])

    [report] = ModelDistribution(logits, [SamplingParams(8, logprobs=20)]).logprobs([4])

    assert report is not None
    assert [token_id for token_id, _ in report.top] == [9, 4]
    assert all(math.isfinite(value) for _, value in report.top)


def test_more_alternatives_than_there_are_tokens() -> None:
    [report] = ModelDistribution(torch.zeros(1, 3), [SamplingParams(8, logprobs=20)]).logprobs([1])

    assert report is not None and len(report.top) == 3
    assert report.logprob == pytest.approx(math.log(1 / 3))


def test_a_report_does_not_depend_on_the_other_rows() -> None:
    logits = some_logits(9)
    params = [SamplingParams(8, logprobs=i % 6) for i in range(9)]
    token_ids = list(range(9))

    together = ModelDistribution(logits, params).logprobs(token_ids)

    for i in range(9):
        alone = ModelDistribution(logits[[i]], params[i : i + 1]).logprobs(token_ids[i : i + 1])
        assert alone == [together[i]]
