"""A row's result is its own: whatever its parameters, mates, order, preemptions and resumes are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from ascii_tokenizer import ascii_tokenizer, with_text
from drive import make_engine, run
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCAB_SIZE, prompts

from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.types import (
    Grammar,
    GrammarKind,
    Job,
    JobKind,
    Prompt,
    Row,
    RowResult,
    SamplingParams,
    Usage,
)
from gristmill_worker.choices import assemble, computed_choices, of_choice
from gristmill_worker.engine.base import NOTHING, Finished, Generated
from gristmill_worker.engine.engine import ContinuousBatchingEngine

IDS = st.integers(3, VOCAB_SIZE - 1)
LETTERS = ascii_tokenizer().encode("abcde").ids
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", True, None]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
GRAMMARS = [
    Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA), strict=True),
    Grammar(GrammarKind.JSON_SCHEMA, '{"type":"array","items":{"type":"boolean"},"minItems":2}'),
    Grammar(GrammarKind.REGEX, "[a-c]{2,9}(x|yz)"),
    Grammar(GrammarKind.CHOICE, '["abcabcabc","abcabd","b"]'),
    Grammar(GrammarKind.LARK, 'start: "(" start ")" | "x"'),
]
PARAMS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 24),
        "temperature": st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.8]),
        "top_p": st.sampled_from([1.0, 0.9, 0.3]),
        "top_k": st.sampled_from([0, 1, 20]),
        "min_p": st.sampled_from([0.0, 0.1]),
        # Most rows have no penalties and no grammar, so that they may draft.
        "frequency_penalty": st.sampled_from([0.0, 0.0, 1.7, -1.5]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3, 0.8]),
        "seed": st.integers(0, 2**64 - 1),
        "logit_bias": st.dictionaries(
            st.sampled_from(LETTERS) | IDS, st.floats(-9, 30, width=16), max_size=3
        ).map(lambda bias: tuple(sorted(bias.items()))),
        "min_tokens": st.sampled_from([0, 0, 5]),
        "stop": st.lists(st.sampled_from(["a", "bc", "}", "ca"]), max_size=2).map(tuple),
        "stop_token_ids": st.lists(IDS, max_size=2).map(tuple),
        "include_stop_str_in_output": st.booleans(),
        "ignore_eos": st.booleans(),
        "logprobs": st.sampled_from([None, 0, 4]),
        "n": st.sampled_from([1, 1, 1, 3]),
        "grammar": st.sampled_from([None, None, None, *GRAMMARS]),
        "echo": st.sampled_from([False, False, True]),
        "skip_special_tokens": st.booleans(),
    }
)
VECTORS = st.builds(EmbeddingParams, st.sampled_from(Pooling), st.booleans())


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Rows of all kinds. Many begin alike, and some repeat themselves, which makes drafts."""
    [shared] = prompts([48], seed=draw(st.integers(0, 9)))
    made = []
    for i in range(draw(st.integers(2, 6))):
        own = draw(st.lists(IDS | st.sampled_from(LETTERS), min_size=1, max_size=6))
        if draw(st.booleans()):
            own = (own * 20)[:20]
        prompt = (*shared[: draw(st.sampled_from([0, 0, 17, 28]))], *own)
        kind = draw(st.sampled_from([JobKind.GENERATE, JobKind.GENERATE, *JobKind]))
        row = (Row(i, str(i)),)
        if kind is JobKind.EMBED:
            params = SamplingParams(0, temperature=0.0)
            made.append(Job(row, (Prompt(prompt),), params, kind, draw(VECTORS)))
        elif kind is JobKind.SCORE:
            prompt = (*prompt, *own)
            scored = Prompt(prompt, draw(st.integers(1, len(prompt) - 1)))
            made.append(Job(row, (scored,), SamplingParams(0, temperature=0.0, logprobs=2), kind))
        else:
            params = SamplingParams(**draw(PARAMS))
            scored_from = 1 if params.echo and params.logprobs is not None else None
            made.append(Job(row, (Prompt(prompt, scored_from),), params))
    return made


def sequences(wanted: list[Job]) -> Iterator[tuple[str, Job]]:
    """What the Engine computes: a Sequence for each Choice that is not a copy of another."""
    for i, job in enumerate(wanted):
        for choice in computed_choices(job):
            yield f"{i}/{choice}", of_choice(job, choice)


def results(wanted: list[Job], ends: dict[str, Finished]) -> list[RowResult]:
    """All of each row's result but times and cached tokens."""
    found = []
    for i, job in enumerate(wanted):
        of_row = {choice: ends[f"{i}/{choice}"] for choice in computed_choices(job)}
        whole = assemble(i, job, of_row, at=0)
        usage = Usage(whole.usage.prompt_tokens, whole.usage.completion_tokens, 0)
        found.append(RowResult(i, job.rows, usage=usage, choices=whole.choices, error=whole.error))
    return found


def killed(
    data: st.DataObject,
    engine: ContinuousBatchingEngine,
    rows: dict[str, tuple[Job, Generated]],
    finished: dict[str, Finished],
) -> dict[str, tuple[Job, Generated]]:
    """Runs `rows` for a while and leaves them there. What a checkpoint knew of those that go on
    elsewhere: it is older than the end, and rows that finished behind it are forgotten."""
    for name, (job, begun) in rows.items():
        engine.add(name, job, begun)
    checkpoint, ended = dict(rows), dict[str, Finished]()
    saved_at = data.draw(st.sampled_from([20, 12, 6, 2]))
    for step in range(saved_at + data.draw(st.integers(0, 6))):
        ended |= {end.seq_id: end for end in engine.step().finished}
        if step == saved_at - 1:
            finished |= ended
            live = rows.keys() - ended.keys()
            checkpoint = {name: (rows[name][0], engine.generated(name)) for name in live}
    return checkpoint


@pytest.fixture(autouse=True)
def _few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that they often do not suffice for what a row with limits draws."""
    monkeypatch.setattr("gristmill_worker.engine.draw._NUM_AT_ONCE", 16)


def assert_rows_are_their_own(model_pair: Any, compiled: Any, data: st.DataObject) -> None:
    # Packed layers and our kernel give a row the same bits in any company.
    loaded = with_text(model_pair("llama", packed=True)[1])
    exact = {"block_size": 16, "attention": compiled}
    wanted = data.draw(jobs())
    named = dict(sequences(wanted))
    alone: dict[str, Finished] = {}
    for name, job in named.items():
        engine = make_engine(loaded, draft_fixed_tokens=0, prefix_caching=False, **exact)
        alone |= run(engine, [(name, job)])

    def crowded() -> ContinuousBatchingEngine:
        # Little room, and no foresight: rows are thrown out and computed again.
        return make_engine(
            loaded,
            num_blocks=data.draw(st.sampled_from([6, 9, 40])),
            expected_output_tokens=1.0,
            max_num_seqs=data.draw(st.sampled_from([2, 8])),
            max_num_batched_tokens=data.draw(st.sampled_from([8, 32, 100])),
            prefix_caching=data.draw(st.booleans()),
            draft_fixed_tokens=data.draw(st.sampled_from([0, 16, 10_000])),
            asynchronous=data.draw(st.booleans()),
            **exact,
        )

    order = data.draw(st.permutations(sorted(named)))
    left, together = {name: (named[name], NOTHING) for name in order}, dict[str, Finished]()
    for _ in range(data.draw(st.sampled_from([1, 0, 2]))):
        left = killed(data, crowded(), left, together)
    engine = crowded()
    for name, (job, begun) in left.items():
        engine.add(name, job, begun)
    together |= run(engine, [])

    assert results(wanted, together) == results(wanted, alone)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_row_gives_the_same_alone_in_company_preempted_and_resumed(
    model_pair: Any, compiled: Any, data: st.DataObject
) -> None:
    assert_rows_are_their_own(model_pair, compiled, data)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_many_rows_give_the_same(model_pair: Any, compiled: Any, data: st.DataObject) -> None:
    assert_rows_are_their_own(model_pair, compiled, data)


def test_rows_with_grammars_and_rows_that_draft_leave_each_other_alone(
    model_pair: Any, compiled: Any
) -> None:
    loaded = with_text(model_pair("llama", packed=True)[1])
    exact = {"block_size": 16, "attention": compiled, "max_num_seqs": 32}
    prompt = Prompt(tuple([*LETTERS] * 4))
    loop = SamplingParams(24, temperature=0.0, logit_bias=((LETTERS[0], 100.0),), ignore_eos=True)
    wanted = [
        Job((Row(0, "0"),), (prompt,), replace(loop, logprobs=2)),
        *(
            Job((Row(i, str(i)),), (prompt,), SamplingParams(24, seed=i, grammar=grammar))
            for i, grammar in enumerate(GRAMMARS, 1)
        ),
        Job((Row(9, "9"),), (prompt,), replace(loop, temperature=0.7, seed=4, logprobs=2)),
    ]
    plain = make_engine(loaded, draft_fixed_tokens=0, **exact)
    drafting = make_engine(loaded, draft_fixed_tokens=10_000, **exact)
    plans = []
    schedule = drafting.scheduler.schedule
    drafting.scheduler.schedule = lambda: plans.append(schedule()) or plans[-1]  # type: ignore[method-assign,func-returns-value]

    without, ends = run(plain, sequences(wanted)), run(drafting, sequences(wanted))

    assert results(wanted, ends) == results(wanted, without)
    in_one_step = [
        {item.seq.params.grammar is not None for item in plan.scheduled}
        for plan in plans
        if any(item.drafts for item in plan.scheduled)
    ]
    assert {True, False} in in_one_step, "no step had a row with drafts beside one with a grammar"
