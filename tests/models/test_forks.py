"""Prefixes that end inside a Block: what is copied has the bits that would have been computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drive import fail_a_step, make_engine, run
from tiny import VOCAB_SIZE, greedy_alone, greedy_job, prompts, score_job

from gristmill.types import Job
from gristmill_worker.engine.base import Finished
from gristmill_worker.engine.kv_cache import KVCache
from gristmill_worker.models.probe import LayerSpec


def scored_rows(num_shared: int) -> list[Job]:
    context, *tails = prompts([num_shared, 3, 5, 1, 20])
    return [score_job([*context, *tail], num_shared) for tail in tails]


def generating_rows(num_shared: int) -> list[Job]:
    prefix, *tails = prompts([num_shared, 3, 5, 1, 20], seed=1)
    return [greedy_job([*prefix, *tail], 9, logprobs=2, ignore_eos=True) for tail in tails]


def told(end: Finished) -> tuple[object, ...]:
    assert end.error is None
    return end.scored, end.generated.token_ids, end.generated.logprobs


@pytest.mark.parametrize("num_shared", [9, 45, 47, 48, 52])
@pytest.mark.parametrize("make_rows", [scored_rows, generating_rows])
def test_rows_behind_a_fork_have_the_bits_that_they_have_alone(
    model_pair: Any, compiled: Any, make_rows: Any, num_shared: int
) -> None:
    _, loaded = model_pair("llama", packed=True)
    rows = make_rows(num_shared)
    options = {"block_size": 16, "attention": compiled}
    alone = [run(make_engine(loaded, **options), [("0", row)])["0"] for row in rows]

    cached = []
    for room in ({}, {"num_blocks": 7, "expected_output_tokens": 1.0}):
        jobs = [(str(i), row) for i, row in enumerate(rows)]
        together = run(make_engine(loaded, **options, **room), jobs)

        for i, end in enumerate(alone):
            assert told(together[str(i)]) == told(end)
        cached.append(sorted(end.usage.cached_tokens for end in together.values()))
    # A score needs what the last token of the context predicts, so that one is computed again.
    most = num_shared - 1 if make_rows is scored_rows else num_shared
    if most % 16 < 4:  # so few are not worth a copy
        most -= most % 16
    assert cached[0] == [0, most, most, most]


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "gpt2"])
def test_rows_behind_a_fork_agree_with_the_model_alone(model_pair: Any, name: str) -> None:
    oracle, loaded = model_pair(name)
    prefix, *tails = prompts([45, 3, 5, 1], seed=1)
    rows = [[*prefix, *tail] for tail in tails]

    jobs = [(str(i), greedy_job(row, 9)) for i, row in enumerate(rows)]
    together = run(make_engine(loaded, block_size=16), jobs)

    for i, row in enumerate(rows):
        assert list(together[str(i)].generated.token_ids) == greedy_alone(oracle, row, 9)
    assert sorted(end.usage.cached_tokens for end in together.values()) == [0, 45, 45]


def test_a_conversation_goes_on_from_inside_the_block_where_it_stopped(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    engine = make_engine(loaded, block_size=16)
    [begin, more] = prompts([20, 6], seed=2)
    first = run(engine, [("a", greedy_job(begin, 9, ignore_eos=True))])["a"]

    turn = [*begin, *first.generated.token_ids, *more]
    second = run(engine, [("b", greedy_job(turn, 3))])["b"]

    assert second.usage.cached_tokens == 28  # the last token of an answer is never computed


@pytest.mark.parametrize("is_tried_again", [True, False])
def test_a_fork_that_was_never_copied_is_computed(
    model_pair: Any, compiled: Any, is_tried_again: bool
) -> None:
    """The launch of a step fails, and the Worker tries again or takes the rows out."""
    _, loaded = model_pair("llama", packed=True)
    options = {"block_size": 16, "attention": compiled}
    first, second, third = generating_rows(27)[:3]
    alone = {
        name: run(make_engine(loaded, **options), [(name, job)])[name]
        for name, job in (("second", second), ("third", third))
    }
    engine = make_engine(loaded, **options)
    run(engine, [("first", first)])
    copies: list[torch.Tensor | None] = []

    engine.add("second", second)
    fail_a_step(engine, lambda batch: copies.append(batch.copies))
    assert copies[0] is not None
    if not is_tried_again:
        engine.cancel("second")
    together = run(engine, [("third", third)])

    for name, end in together.items():
        assert told(end) == told(alone[name])
    assert len(together) == 1 + is_tried_again


def test_a_step_that_is_computed_again_makes_no_copies_again(
    model_pair: Any, compiled: Any
) -> None:
    """The Block that is forked is evicted for another row of the same step, whose exception in the
    Sampler is the reason for computing again."""
    _, loaded = model_pair("llama", packed=True)
    options = {"block_size": 16, "attention": compiled, "expected_output_tokens": 1.0}
    [begin, tail, other] = prompts([12, 5, 10], seed=3)
    forking = greedy_job([*begin, *tail], 2, logprobs=2, ignore_eos=True)
    alone = run(make_engine(loaded, **options), [("row", forking)])["row"]
    engine = make_engine(loaded, num_blocks=3, **options)
    run(engine, [("first", greedy_job(begin, 3, ignore_eos=True))])

    bad = greedy_job(other, 1, logit_bias=((VOCAB_SIZE + 7, 1.0),))
    ends = run(engine, [("row", forking), ("bad", bad)])

    assert ends["bad"].error and ends["row"].usage.cached_tokens == 12
    assert told(ends["row"]) == told(alone)


def test_blocks_are_all_read_before_any_is_written() -> None:
    layers = [LayerSpec(2, 4, 6), LayerSpec(2, 4, 6, shares=0)]
    cache = KVCache(layers, 4, 8, dtype=torch.float32, device=torch.device("cpu"))
    keys, values = cache.layers[0].keys, cache.layers[0].values
    for block in range(5):
        keys[block], values[block] = block, 10 + block

    cache.copy_blocks(torch.tensor([[0, 1], [1, 2], [3, 3]]))

    assert keys[:, 0, 0, 0].tolist() == [0, 0, 1, 3, 4]
    assert values[:, 1, 7, 5].tolist() == [10, 10, 11, 13, 14]
