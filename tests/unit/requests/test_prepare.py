"""Windows: limits of prompt and output, seeds, merging, order, resuming, bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gristmill.requests.prepare import Window
from gristmill.settings import Settings
from gristmill.types import Job

MakeLine = Callable[..., str]


def job_of(windows: list[Window], custom_id: str) -> Job:
    (job,) = (
        job
        for window in windows
        for job in window.jobs
        for row in job.rows
        if row.custom_id == custom_id
    )
    return job


def refused(windows: list[Window]) -> dict[str, tuple[str | None, str]]:
    return {
        one.row.custom_id: (one.error.param, one.error.code)
        for window in windows
        for one in window.refused
    }


def test_each_row_is_in_one_job_or_one_refusal(read: Any, completion: MakeLine) -> None:
    lines = [
        completion(f"r{n}", f"hi {n % 50}", temperature=n % 3 / 10, store=n == 7)
        for n in range(120)
    ]

    windows = read(lines)

    rows = [row for w in windows for job in w.jobs for row in job.rows]
    rows += [one.row for w in windows for one in w.refused]
    assert sorted((row.idx, row.custom_id) for row in rows) == [(n, f"r{n}") for n in range(120)]
    assert refused(windows) == {"r7": ("store", "unsupported_parameter")}
    (refusal,) = windows[0].refused
    assert (refusal.error.status_code, refusal.error.type) == (400, "invalid_request_error")
    assert refusal.line_no == 8


def test_B08_bad_lines_are_refused_alone_and_the_good_ones_run(
    read: Any, completion: MakeLine
) -> None:
    bad = [
        {"seed": 18446744073709551616},
        {"seed": -9223372036854775809},
        {"temperature": -0.1},
        {"top_p": 0},
        {"logit_bias": {"49152": 5}},
        {"logit_bias": {"-1": 5}},
        {"logit_bias": {"abc": 5}},
        {"n": 0},
        {"max_tokens": 99999999999999999999},
    ]
    lines = [completion(f"bad{n}", **fields) for n, fields in enumerate(bad)]

    windows = read([completion("first"), *lines, completion("last")])

    assert {name: param for name, (param, _) in refused(windows).items()} == {
        f"bad{n}": next(iter(fields)) for n, fields in enumerate(bad)
    }
    assert job_of(windows, "first") and job_of(windows, "last")


def test_B27_a_schema_that_does_not_compile_refuses_its_row_and_no_other(
    read: Any, chat: MakeLine
) -> None:
    def wanted(pop: dict[str, Any]) -> dict[str, Any]:
        schema = {"type": "object", "properties": {"pop": pop}, "required": ["pop"]}
        return {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}

    huge = wanted({"type": "integer", "minimum": 0, "maximum": 20_000_000_000})

    windows = read(
        [
            chat("plain"),
            chat("json", response_format=huge, n=2),
            chat("bad", response_format=wanted({"not": {"type": "string"}})),
        ]
    )

    assert refused(windows) == {"bad": ("response_format", "invalid_grammar")}
    grammar = job_of(windows, "json").params.grammar
    assert grammar and "20000000000" in grammar.text
    assert job_of(windows, "plain").params.grammar is None


def test_B15_a_prompt_over_the_window_is_refused_with_both_numbers(
    read: Any, make_model: Any, completion: MakeLine, chat: MakeLine
) -> None:
    model = make_model(max_model_len=64)

    completions = read([completion("t1", list(range(200)), max_tokens=4)], model)
    chats = read([chat("t2", "the quick brown fox " * 50)], model)

    assert refused(completions) == {"t1": ("prompt", "context_length_exceeded")}
    message = completions[0].refused[0].error.message
    assert "200" in message and "64" in message
    assert refused(chats) == {"t2": ("messages", "context_length_exceeded")}


@pytest.mark.parametrize("num_tokens", [1, 62, 63])
@pytest.mark.parametrize("max_tokens", [1, 2, 100, 2**31 - 1])
def test_B26_max_tokens_is_lowered_to_what_the_window_leaves(
    num_tokens: int, max_tokens: int, read: Any, make_model: Any, completion: MakeLine
) -> None:
    line = completion("a", [5] * num_tokens, max_tokens=max_tokens)

    windows = read([line], make_model(max_model_len=64))

    assert job_of(windows, "a").params.max_tokens == min(max_tokens, 64 - num_tokens)


@pytest.mark.parametrize("num_tokens", [64, 65])
@pytest.mark.parametrize("limit", [{"max_tokens": 1}, {"max_tokens": 100}, {}])
def test_B26_a_prompt_that_fills_the_window_is_refused(
    num_tokens: int, limit: dict[str, int], read: Any, make_model: Any, completion: MakeLine
) -> None:
    windows = read([completion("a", [5] * num_tokens, **limit)], make_model(max_model_len=64))

    assert refused(windows) == {"a": ("prompt", "context_length_exceeded")}


def test_B26_without_max_tokens_a_chat_may_use_the_rest_and_a_completion_16(
    read: Any, make_model: Any, completion: MakeLine, chat: MakeLine
) -> None:
    model = make_model(max_model_len=64)

    chats = read([chat("a")], model)
    completions = read([completion("a", [5] * 10), completion("b", [5] * 60)], model)

    job = job_of(chats, "a")
    assert job.params.max_tokens == 64 - len(job.prompt_ids) > 0
    assert job_of(completions, "a").params.max_tokens == 16
    assert job_of(completions, "b").params.max_tokens == 4


@pytest.mark.parametrize("max_tokens", [1, 5, 20])
def test_B23_max_tokens_arrives_as_it_was_written(
    max_tokens: int, read: Any, completion: MakeLine
) -> None:
    windows = read([completion("a", max_tokens=max_tokens)])

    assert job_of(windows, "a").params.max_tokens == max_tokens


def test_B71_one_impossible_row_is_refused_and_97_of_100_run(
    read: Any, make_model: Any, completion: MakeLine
) -> None:
    lines = [completion(f"r{n}", f"hi {n}", max_tokens=2) for n in range(1, 101)]
    lines[36] = completion("r37", "", max_tokens=2)
    lines[60] = completion("r61", " the" * 9000, max_tokens=2)
    lines[82] = completion("r83", [5, 999999999, -1], max_tokens=2)

    for ordered in (lines, lines[::-1]):
        windows = read(ordered, make_model())
        assert refused(windows) == {
            "r37": ("prompt", "empty_prompt"),
            "r61": ("prompt", "context_length_exceeded"),
            "r83": ("prompt", "invalid_value"),
        }
        assert sum(len(job.rows) for w in windows for job in w.jobs) == 97


def test_B71_every_kind_of_empty_prompt(
    read: Any, make_model: Any, completion: MakeLine, chat: MakeLine
) -> None:
    lines = [completion("a", []), completion("b", [""]), completion("c", ["a", ""])]

    assert refused(read(lines)) == {
        "a": ("prompt", "empty_prompt"),
        "b": ("prompt", "empty_prompt"),
        "c": ("prompt[1]", "empty_prompt"),
    }
    assert refused(read([chat("d", "")])) == {}  # the template gives it tokens
    bare = make_model(template="{{ messages[0].content }}")
    assert refused(read([chat("d", "")], bare)) == {"d": ("messages", "empty_prompt")}


def test_B71_an_empty_prompt_runs_where_the_tokenizer_begins_with_bos(
    read: Any, make_model: Any, completion: MakeLine
) -> None:
    windows = read([completion("a", "")], make_model(add_bos=True))

    assert len(job_of(windows, "a").prompt_ids) == 1


def test_a_token_that_the_model_does_not_have_is_refused(
    read: Any, make_model: Any, completion: MakeLine
) -> None:
    model = make_model(vocab_size=200)  # " the" is a token of its own, behind the alphabet

    windows = read([completion("a", " the"), completion("b", "!")], model)

    assert refused(windows) == {"a": ("prompt", "invalid_value")}
    assert max(job_of(windows, "b").prompt_ids) < 200


def test_a_template_that_objects_refuses_its_row_only(
    read: Any, make_model: Any, chat: MakeLine
) -> None:
    system = [{"role": "system", "content": "x"}]

    windows = read([chat("a"), chat("b", messages=system)], make_model(template="strict"))

    assert refused(windows) == {"b": ("messages", "invalid_request")}
    assert "no system turn" in windows[0].refused[0].error.message


def test_equal_deterministic_rows_share_a_job(read: Any, completion: MakeLine) -> None:
    lines = [
        completion("a", "hi", temperature=0, seed=1),
        completion("b", "hi", temperature=0),
        completion("c", "hi", seed=7),
        completion("d", "hi", seed=7),
        completion("e", "hi", seed=8),
        completion("f", "hi"),
        completion("g", "hi"),
        completion("h", "hi", temperature=0, max_tokens=3),
    ]

    (window,) = read(lines)

    shared = sorted("".join(row.custom_id for row in job.rows) for job in window.jobs)
    assert shared == ["ab", "cd", "e", "f", "g", "h"]
    assert window.num_rows == 8
    assert window.prompt_tokens == 8 * len(window.jobs[0].prompt_ids)


def test_equal_rows_stay_apart_where_that_is_asked_for(read: Any, completion: MakeLine) -> None:
    lines = [completion(name, "hi", temperature=0) for name in "abc"]

    (window,) = read(lines, settings=Settings(merge_identical_rows=False))

    assert sorted(row.custom_id for job in window.jobs for row in job.rows) == ["a", "b", "c"]
    assert len(window.jobs) == 3


def test_the_seed_of_a_row_depends_on_the_batch_and_its_custom_id(
    read: Any, completion: MakeLine
) -> None:
    lines = [completion("a"), completion("b"), completion("c", seed=-1)]

    one, again, other = (read(lines, batch_seed=seed) for seed in ("x", "x", "y"))
    moved = read(lines[::-1], batch_seed="x")

    seeds = [job_of(one, name).params.seed for name in "abc"]
    assert seeds == [job_of(again, name).params.seed for name in "abc"]
    assert seeds == [job_of(moved, name).params.seed for name in "abc"]
    assert len({*seeds, job_of(other, "a").params.seed}) == 4
    assert seeds[2] == job_of(other, "c").params.seed == 2**64 - 1
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_the_derived_seed_is_pinned(read: Any, completion: MakeLine) -> None:
    """A batch that is resumed by a later version must get the same samples."""
    windows = read([completion("a")], batch_seed=b"seed")

    assert job_of(windows, "a").params.seed == 7678983055743948438
    assert read([completion("a")], batch_seed="seed") == windows


def test_jobs_with_a_shared_prefix_stand_together(read: Any, completion: MakeLine) -> None:
    prefixes = [[7] * 20, [3] * 20, [5] * 20]
    lines = [completion(f"r{n}", prefixes[n % 3] + [n]) for n in range(30)]

    (window,) = read(lines)

    first_ids = [job.prompt_ids[0] for job in window.jobs]
    assert first_ids == sorted(first_ids)
    same_prompt = read([completion(f"r{n}", [1, 2]) for n in range(9)])[0].jobs
    assert [job.rows[0].idx for job in same_prompt] == list(range(9))


def test_big_integers_survive(read: Any, completion: MakeLine) -> None:
    line = completion("a", seed=9007199254740993)
    assert json.loads(line)["body"]["seed"] == 9007199254740993

    assert job_of(read([line]), "a").params.seed == 9007199254740993
