"""The Sampler: limits mean what they say, draws depend on seed and position, rows on no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.types import SamplingParams
from gristmill_worker.engine.likeliest import likeliest, likeliest_of_all
from gristmill_worker.engine.penalties import TokenCounts
from gristmill_worker.engine.sampler import SamplingRow, Unsampled, sample, uniform

VOCAB_SIZE = 1000


def row(num_generated: int = 0, **params: Any) -> SamplingRow:
    return SamplingRow(SamplingParams(max_tokens=8, **params), num_generated)


def counted(
    token_ids: list[int], forbidden_ids: tuple[int, ...] = (), **params: Any
) -> SamplingRow:
    """A row whose prompt is the first half of `token_ids`."""
    sampling = SamplingParams(max_tokens=8, **params)
    num_prompt_tokens = -(-len(token_ids) // 2)
    counts = None
    if sampling.has_penalties:
        counts = TokenCounts(num_prompt_tokens)
        counts.take(token_ids)
    return SamplingRow(sampling, len(token_ids) - num_prompt_tokens, counts, forbidden_ids)


def random_logits(num_rows: int = 1, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * spread


def draws(logits: torch.Tensor, count: int, **params: Any) -> list[int]:
    rows = [row(num_generated=i, **params) for i in range(count)]
    picked = sample(logits.expand(count, -1).clone(), rows)
    return [token_id for token_id in picked if not isinstance(token_id, Unsampled)]


def test_greedy_takes_the_largest_logit_and_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[0, [7, 400]] = 3.0

    assert sample(logits, [row(temperature=0.0), row(temperature=0.0)]) == [7, 0]


def test_draws_follow_the_distribution() -> None:
    logits = torch.full((1, VOCAB_SIZE), float("-inf"))
    probabilities = {3: 0.5, 10: 0.3, 999: 0.2}
    for token_id, probability in probabilities.items():
        logits[0, token_id] = torch.tensor(probability).log()

    picked = draws(logits, 8000, seed=11)

    for token_id, probability in probabilities.items():
        assert picked.count(token_id) / 8000 == pytest.approx(probability, abs=0.02)


@pytest.mark.parametrize("top_k", [1, 3, 300])
def test_top_k_keeps_the_k_likeliest(top_k: int) -> None:
    logits = random_logits(spread=0.5)
    allowed = set(logits[0].topk(top_k).indices.tolist())

    picked = set(draws(logits, 400, seed=1, top_k=top_k))

    assert picked <= allowed and len(picked) > min(top_k, 100) // 2


@pytest.mark.parametrize("top_p", [1e-4, 0.2, 0.7, 0.99])
@pytest.mark.parametrize("spread", [0.3, 4.0])  # the flat one needs more than the candidates
def test_top_p_keeps_the_fewest_that_reach_p(top_p: float, spread: float) -> None:
    logits = random_logits(spread=spread)
    probabilities, order = logits[0].double().softmax(-1).sort(descending=True)
    needed = int((probabilities.cumsum(0) < top_p).sum()) + 1
    allowed = set(order[:needed].tolist())

    picked = set(draws(logits, 400, seed=2, top_p=top_p))

    assert picked <= allowed and len(picked) > min(needed, 50) // 4


def test_min_p_drops_what_is_far_less_likely_than_the_best() -> None:
    logits = random_logits(spread=2.0)
    probabilities = logits[0].softmax(-1)
    allowed = set((probabilities >= 0.2 * probabilities.max()).nonzero().flatten().tolist())

    picked = set(draws(logits, 500, seed=3, min_p=0.2))

    assert picked == allowed


def test_top_p_counts_within_top_k() -> None:
    logits = torch.full((1, VOCAB_SIZE), -50.0)
    logits[0, :4] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()

    picked = set(draws(logits, 500, seed=4, top_k=2, top_p=0.6))

    assert picked == {0, 1}  # 0.4 of 0.7 is less than 0.6, so the second stays


@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1e-4])
def test_B24_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = random_logits(spread=10.0)

    assert set(draws(logits, 50, seed=5, temperature=temperature)) == {int(logits.argmax())}


def test_logit_bias_is_added_before_everything_else() -> None:
    logits = random_logits(2)
    biased = row(temperature=0.0, logit_bias=((5, 100.0),))
    forbidden = row(temperature=0.0, logit_bias=((int(logits[1].argmax()), -100.0),))
    second = int(logits[1].topk(2).indices[1])

    assert sample(logits, [biased, forbidden]) == [5, second]


def test_a_row_of_nan_is_reported_and_its_neighbours_are_not_touched() -> None:
    logits = random_logits(3)
    logits[1, 500] = float("nan")
    rows = [row(seed=1), row(seed=2), row(temperature=0.0)]
    alone = [sample(logits[[i]].clone(), [rows[i]])[0] for i in (0, 2)]

    picked = sample(logits, rows)

    assert picked[1] is Unsampled.NOT_FINITE and [picked[0], picked[2]] == alone


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_row_draws_the_same_alone_and_among_others(data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(2, 6))
    some_params = st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.9]),
            "top_p": st.sampled_from([1.0, 0.9, 0.1]),
            "top_k": st.sampled_from([0, 1, 40, 900]),
            "min_p": st.sampled_from([0.0, 0.05]),
            "seed": st.integers(0, 2**64 - 1),
            "logit_bias": st.sampled_from([(), ((1, 3.0),)]),
            "frequency_penalty": st.sampled_from([0.0, 0.5, -2.0]),
            "presence_penalty": st.sampled_from([0.0, 1.5]),
            "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
        }
    )
    some_ids = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=200)
    some_forbidden = st.sampled_from([(), (5,), tuple(range(0, VOCAB_SIZE, 2))])
    rows = [
        counted(data.draw(some_ids), data.draw(some_forbidden), **data.draw(some_params))
        for _ in range(num_rows)
    ]
    logits = random_logits(num_rows, seed=data.draw(st.integers(0, 99)), spread=1.0)

    together = sample(logits.clone(), rows)

    assert together == [sample(logits[[i]].clone(), [rows[i]])[0] for i in range(num_rows)]


def test_noise_is_uniform_and_depends_on_seed_and_position_only() -> None:
    values = [uniform(seed, position) for seed in range(100) for position in range(100)]

    assert all(0.0 <= value < 1.0 for value in values)
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.01)
    assert len(set(values)) == len(values)
    assert uniform(42, 7) == uniform(42, 7)


def test_forbidden_tokens_are_never_picked_and_nothing_left_is_an_error_of_its_row() -> None:
    logits = random_logits(3)
    best = int(logits[0].argmax())
    second = int(logits[0].topk(2).indices[1])
    greedy = SamplingParams(8, temperature=0.0)
    rows = [
        SamplingRow(greedy, 0, forbidden_ids=(best,)),
        SamplingRow(SamplingParams(8), 0, forbidden_ids=range(VOCAB_SIZE)),
        SamplingRow(greedy, 0, forbidden_ids=range(VOCAB_SIZE)),
    ]

    assert sample(logits, rows) == [second, Unsampled.NOTHING_LEFT, Unsampled.NOTHING_LEFT]


def test_equally_likely_tokens_beyond_the_candidates_stay_together() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)

    picked = draws(logits, 3000, seed=9, top_k=2)

    assert len(set(picked)) > 900


def test_no_rows_need_no_draw() -> None:
    assert sample(torch.empty(0, VOCAB_SIZE), []) == []


@given(
    num_rows=st.integers(1, 5),
    vocab_size=st.integers(1, 3000),
    num=st.integers(1, 300),
    seed=st.integers(0, 99),
    distinct=st.sampled_from([5, 10**6]),
)
def test_the_likeliest_are_those_of_topk(
    num_rows: int, vocab_size: int, num: int, seed: int, distinct: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(distinct, (num_rows, vocab_size), generator=generator).float()
    num = min(num, vocab_size)

    values, ids = likeliest(logits, num)

    assert values.equal(logits.topk(num, dim=-1).values)
    assert logits.gather(-1, ids).equal(values)
    assert all(len(set(row)) == num for row in ids.tolist())


@pytest.mark.parametrize("vocab_size", [1, 199, 512, 1024, 1500, 49152])
def test_the_likeliest_of_all_is_the_first_maximum(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    # Few different numbers, so that most rows have their largest several times.
    logits = torch.randint(0, 4, (40, vocab_size), generator=generator).float()
    logits[0] = float("-inf")
    logits[1, -1] = float("nan")
    logits[2, vocab_size // 2] = float("nan")
    logits[3, 0] = float("inf")

    values, ids = likeliest_of_all(logits)

    expected, _ = logits.max(dim=-1)
    torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True)
    for row, value, token_id in zip(logits.tolist(), expected.tolist(), ids.tolist(), strict=True):
        assert token_id == row.index(value) if value == value else row[token_id] != row[token_id]
