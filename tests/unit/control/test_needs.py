"""What Jobs need of a machine, and which of them travel together."""

from __future__ import annotations

from dataclasses import replace

from pipeline import make_job

from gristmill.control.ingest import cut
from gristmill.needs import RowNeeds, features_in, needs_of, needs_together, size_class
from gristmill.settings import Settings
from gristmill.types import Grammar, GrammarKind, Job, JobKind, Prompt, SamplingParams


def job(idx: int, length: int, *, max_tokens: int = 20) -> Job:
    return make_job(idx, prompt=(1,) * length, max_tokens=max_tokens)


def test_a_row_needs_its_prompt_and_all_of_the_answer_that_it_may_have() -> None:
    assert needs_of(job(0, 100)) == RowNeeds(120, 101, frozenset({"generate"}))
    several = replace(job(0, 1), prompts=(Prompt((1,) * 7), Prompt((1,) * 30)))
    assert needs_of(several).max_row_tokens == 50


def test_what_generates_nothing_needs_its_prompt() -> None:
    for kind in (JobKind.SCORE, JobKind.EMBED):
        silent = replace(job(0, 100), kind=kind, params=SamplingParams(max_tokens=0))

        assert needs_of(silent) == RowNeeds(100, 100, frozenset({kind.value}))


def test_features_are_what_not_every_engine_has() -> None:
    params = SamplingParams(20, logprobs=2, grammar=Grammar(GrammarKind.REGEX, "a"))
    echoed = (Prompt((1, 2, 3), scored_from=1),)

    found = needs_of(replace(job(0, 3), params=params, prompts=echoed)).features

    assert found == {"generate", "grammar", "logprobs", "score"}


def test_the_name_of_a_class_tells_its_features() -> None:
    needs = needs_together([RowNeeds(5000, 10, frozenset({"generate"})), needs_of(job(0, 900))])

    assert size_class(needs) == "8192/1024/generate"
    assert features_in("8192/1024/generate+grammar") == {"generate", "grammar"}
    assert features_in("") == frozenset()


def test_jobs_of_one_class_are_cut_in_their_order() -> None:
    settings = Settings(shard_max_jobs=4, shard_max_tokens=10_000)
    jobs = [job(i, 10 + 50 * (i % 9)) for i in range(10)]

    found = list(cut(jobs, settings))

    assert [len(some) for some in found] == [4, 4, 2]
    assert [one for some in found for one in some] == jobs


def test_jobs_of_several_classes_travel_apart_and_keep_their_order() -> None:
    settings = Settings(shard_max_jobs=4, shard_max_tokens=100_000)
    jobs = [job(i, 3000 if i % 3 == 0 else 100) for i in range(9)]

    found = [[one.rows[0].idx for one in some] for some in cut(jobs, settings)]

    assert found == [[0, 3, 6], [1, 2, 4, 5], [7, 8]]
