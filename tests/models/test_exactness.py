"""Every row equals the model run alone, eagerly and without cache, whatever shares its steps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from drive import make_engine, run
from tiny import ARCHITECTURES, greedy_alone, greedy_job, prompts

LENGTHS = [1, 3, 4, 5, 7, 8, 9, 16, 17, 40, 90]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_mixed_chunked_rows_equal_rows_alone(model_pair: Any, name: str, block_size: int) -> None:
    oracle, loaded = model_pair(name)
    rows = prompts(LENGTHS)
    limits = [7 + 5 * (i % 4) for i in range(len(rows))]
    engine = make_engine(loaded, num_blocks=1024 // block_size, block_size=block_size)

    finished = run(engine, [(str(i), greedy_job(rows[i], limits[i])) for i in range(len(rows))])

    for i, row in enumerate(rows):
        assert list(finished[str(i)].generated.token_ids) == greedy_alone(oracle, row, limits[i])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_fast_path_equals_rows_alone(model_pair: Any, compiled: Any, name: str) -> None:
    oracle, loaded = model_pair(name, packed=True)
    rows = prompts(LENGTHS)
    engine = make_engine(loaded, num_blocks=64, block_size=16, attention=compiled)

    finished = run(engine, [(str(i), greedy_job(row, 20)) for i, row in enumerate(rows)])

    for i, row in enumerate(rows):
        assert list(finished[str(i)].generated.token_ids) == greedy_alone(oracle, row, 20)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_B29_preempted_rows_equal_rows_alone(model_pair: Any, name: str) -> None:
    oracle, loaded = model_pair(name)
    rows = prompts([16, 16, 16, 16], seed=5)
    # 120 tokens of room; the rows want 224, and admission is made to believe they are short.
    engine = make_engine(loaded, num_blocks=30, block_size=4, expected_output_tokens=1.0)
    for i, row in enumerate(rows):
        engine.add(str(i), greedy_job(row, 40, ignore_eos=True))

    finished, num_preempted = {}, 0
    while engine.num_live:
        output = engine.step()
        num_preempted += output.num_preempted
        finished.update({end.seq_id: end for end in output.finished})

    assert 0 < num_preempted < 20
    for i, row in enumerate(rows):
        expected = greedy_alone(oracle, row, 40, eos=False)
        assert list(finished[str(i)].generated.token_ids) == expected
        assert finished[str(i)].usage.completion_tokens == 40
    assert engine.block_manager.num_free_blocks == engine.num_blocks


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_B31_cached_prefixes_change_nothing(model_pair: Any, name: str) -> None:
    oracle, loaded = model_pair(name)
    [prompt] = prompts([48], seed=2)
    forks = [prompt[:40] + tail for tail in prompts([8, 8, 3, 1, 0], seed=3)]
    engine = make_engine(loaded, block_size=4, num_blocks=128)
    expected = greedy_alone(oracle, prompt, 9)

    for _ in range(4):  # the fourth time the whole prompt lies in the cache
        finished = run(engine, [("same", greedy_job(prompt, 9))])["same"]
        assert list(finished.generated.token_ids) == expected
    assert finished.usage.cached_tokens == 47  # all but the last token, which must be computed
    ends = run(engine, [(str(i), greedy_job(fork, 9)) for i, fork in enumerate(forks)])

    for i, fork in enumerate(forks):
        assert list(ends[str(i)].generated.token_ids) == greedy_alone(oracle, fork, 9)
        assert ends[str(i)].usage.cached_tokens >= 36


def test_rows_that_arrive_together_compute_a_shared_prefix_once(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    [prefix] = prompts([64], seed=4)
    rows = [prefix + tail for tail in prompts([5] * 6, seed=6)]
    engine = make_engine(loaded, num_blocks=256)

    finished = run(engine, [(str(i), greedy_job(row, 4)) for i, row in enumerate(rows)])

    cached = sorted(end.usage.cached_tokens for end in finished.values())
    assert cached == [0, 64, 64, 64, 64, 64]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 8])
def test_B33_grouping_changes_no_row(model_pair: Any, name: str, max_num_seqs: int) -> None:
    oracle, loaded = model_pair(name)
    rows = prompts([1, 7, 120], seed=9)
    expected = [greedy_alone(oracle, row, 8) for row in rows]

    for order in itertools.permutations(range(3)):
        engine = make_engine(loaded, num_blocks=128, max_num_seqs=max_num_seqs)
        finished = run(engine, [(str(i), greedy_job(rows[i], 8)) for i in order])
        assert [list(finished[str(i)].generated.token_ids) for i in range(3)] == expected


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ids_equal_generate_of_transformers(model_pair: Any, name: str) -> None:
    import torch

    oracle, loaded = model_pair(name)
    rows = prompts([2, 11, 30], seed=8)
    finished = run(
        make_engine(loaded), [(str(i), greedy_job(row, 12)) for i, row in enumerate(rows)]
    )

    for i, row in enumerate(rows):
        with torch.inference_mode():
            whole = oracle.generate(
                torch.tensor([row]), max_new_tokens=12, do_sample=False, pad_token_id=0
            )
        assert list(finished[str(i)].generated.token_ids) == whole[0, len(row) :].tolist()
