"""Several answers to one row: counted once, complete before the row counts, kept over a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fake_engine import FakeEngine, fake_tokens
from floor import Floor
from pipeline import make_job

from gristmill.types import FinishReason, Job, Prompt, Usage
from gristmill_worker.choices import choice_seed, of_choice


def with_params(job: Job, **params: Any) -> Job:
    return replace(job, params=replace(job.params, **params))


def answers(job: Job) -> list[tuple[int, ...]]:
    return [fake_tokens(of_choice(job, i)) for i in range(job.params.n)]


#: Its answers have different lengths.
JOB = with_params(make_job(3, max_tokens=18), n=5, seed=77)


def test_seeds_of_choices_differ_and_the_first_is_the_rows_own() -> None:
    seeds = [choice_seed(seed, i) for seed in (0, 1, 2**64 - 1) for i in range(128)]

    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert choice_seed(77, 0) == 77
    assert of_choice(JOB, 0) == with_params(JOB, n=1)


def test_B23_each_choice_has_its_reason_and_the_prompt_counts_once() -> None:
    floor = Floor()
    floor.send(0, [JOB, make_job(1)])

    floor.run_dry(floor.worker())

    result = {r.job_idx: r for r in floor.results()}[0]
    expected = answers(JOB)
    assert len({len(ids) for ids in expected}) > 2 and 18 in map(len, expected)
    assert [choice.token_ids for choice in result.choices] == expected
    assert [choice.finish_reason for choice in result.choices] == [
        FinishReason.LENGTH if len(ids) == 18 else FinishReason.STOP for ids in expected
    ]
    assert result.usage == Usage(len(JOB.prompt_ids), sum(map(len, expected)))
    assert 0 < result.ttft_s < result.finished_at and result.itl_s > 0


def test_choices_of_several_prompts_stand_prompt_by_prompt_and_each_prompt_counts_once() -> None:
    floor = Floor()
    prompts = tuple(Prompt((7, i, i)[: 1 + i]) for i in range(3))
    sampled = replace(with_params(JOB, n=2), prompts=prompts)
    greedy = with_params(sampled, temperature=0.0)
    floor.send(0, [sampled, greedy])

    floor.run_dry(floor.worker())

    results = {r.job_idx: r for r in floor.results()}
    each = [fake_tokens(of_choice(sampled, i)) for i in range(6)]
    assert [choice.token_ids for choice in results[0].choices] == each
    assert results[0].usage == Usage(1 + 2 + 3, sum(map(len, each)))
    firsts = [fake_tokens(of_choice(greedy, i)) for i in (0, 2, 4)]
    twice = [ids for ids in firsts for _ in range(2)]
    assert [choice.token_ids for choice in results[1].choices] == twice
    assert results[1].usage == Usage(1 + 2 + 3, sum(map(len, twice)))


def test_equal_greedy_choices_are_computed_once() -> None:
    floor = Floor()
    job = with_params(make_job(2), n=3, temperature=0.0)
    floor.send(0, [job])

    floor.run_dry(floor.worker())

    [result] = floor.results()
    ids = fake_tokens(with_params(job, n=1))
    assert [choice.token_ids for choice in result.choices] == [ids] * 3
    assert result.usage == Usage(len(job.prompt_ids), 3 * len(ids))
    assert sum(floor.decoded.values()) == len(ids)


def test_a_row_counts_when_all_its_choices_are_there_and_none_is_decoded_twice() -> None:
    floor = Floor()
    floor.send(0, [JOB])
    expected = answers(JOB)
    shortest = min(map(len, expected))
    first = floor.worker(max_num_seqs=5)
    floor.turn(first, times=shortest + 1)

    first.drain()  # one Choice has ended by now, the others have not

    assert not floor.results()
    places = {(c.job_idx, c.choice_idx) for s in floor.segments() for c in s.checkpoints}
    assert places == {(0, i) for i in range(5)}
    floor.run_dry(floor.worker(max_num_seqs=5))
    [result] = floor.results()
    assert [choice.token_ids for choice in result.choices] == expected
    assert sum(floor.decoded.values()) == sum(map(len, expected))


def test_a_choice_that_fails_fails_its_row_once_and_frees_the_others() -> None:
    floor = Floor()
    bad = with_params(make_job(4, prompt=[FakeEngine.BAD, 1]), n=6, seed=1)
    floor.send(0, [bad, make_job(1)])
    worker = floor.worker(max_num_seqs=2)

    floor.run_dry(worker)

    results = {result.job_idx: result for result in floor.results()}
    assert len(floor.results()) == 2
    assert results[0].error is not None and not results[0].choices
    assert results[1].error is None
