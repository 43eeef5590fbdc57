"""What is stored and sent comes back as it was: every field, every float, whatever its value."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gristmill.histogram import Histogram
from gristmill.scoring import ScoreType, Scoring, TextSize
from gristmill.types import (
    Checkpoint,
    Choice,
    Endpoint,
    FinishReason,
    Grammar,
    GrammarKind,
    Job,
    JobKind,
    ModelPin,
    Prompt,
    Row,
    RowError,
    RowResult,
    SamplingParams,
    Segment,
    Shard,
    TokenLogprob,
    ToolFormat,
    ToolUse,
    Usage,
)
from gristmill.wire import decode_segment, decode_shard, encode_segment, encode_shard

IDS = st.integers(0, 2**32 - 1)
VECTORS = st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(tuple)
FLOATS = st.floats(max_value=0, width=32, allow_infinity=False, allow_nan=False)
LOGPROBS = st.builds(TokenLogprob, FLOATS, st.lists(st.tuples(IDS, FLOATS), max_size=3).map(tuple))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


@st.composite
def choices(draw: Any) -> Choice:
    count = draw(st.integers(0, 4))
    asks = draw(st.booleans())

    def some(values: Any) -> Any:
        return tuple(draw(st.lists(values, min_size=count, max_size=count)))

    return Choice(
        some(IDS),
        draw(TEXT),
        draw(st.sampled_from(FinishReason)),
        some(LOGPROBS) if asks else (),
        some(IDS) if asks else (),
        draw(st.dictionaries(IDS, st.binary(max_size=4), max_size=3)) if asks else {},
        draw(st.lists(LOGPROBS, max_size=4).map(tuple)),
        draw(VECTORS),
    )


@given(
    answer=st.lists(choices(), max_size=3).map(tuple),
    logprobs=st.lists(LOGPROBS, max_size=4).map(tuple),
)
def test_a_segment_comes_back_as_it_was(
    answer: tuple[Choice, ...], logprobs: tuple[TokenLogprob, ...]
) -> None:
    ids = tuple(range(len(logprobs)))
    segment = Segment(
        *("acme", "batch_1", "run-1", 3, "att-1", 7),
        (
            RowResult(0, (Row(0, "a\u2028"), Row(2**40, "b")), Usage(1, 2, 3), answer, ttft_s=0.1),
            RowResult(1, (Row(1, "c"),), error=RowError("x", "y", "z", 400)),
        ),
        (Checkpoint(2, 1, 5, ids, ids, logprobs), Checkpoint(3, 0, 0, (1,), (2,))),
        Histogram({4: 5}),
        Histogram(),
    )

    found = decode_segment(encode_segment(segment))

    assert (found.results, found.checkpoints) == (segment.results, segment.checkpoints)
    assert found.ttft.counts == {4: 5} and found.itl.counts == {}


def test_every_parameter_comes_back_as_it_was() -> None:
    params = SamplingParams(
        max_tokens=5,
        temperature=0.1,
        top_p=0.2,
        top_k=3,
        min_p=0.4,
        frequency_penalty=-0.5,
        presence_penalty=0.6,
        repetition_penalty=1.7,
        seed=2**64 - 1,
        logit_bias=((1, -100.0), (2, 0.5)),
        min_tokens=2,
        stop=("a", "\n"),
        stop_token_ids=(4, 5),
        include_stop_str_in_output=True,
        ignore_eos=True,
        logprobs=0,
        n=128,
        grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}', strict=True),
        tools=ToolUse(ToolFormat.HERMES, ("f", "g")),
        skip_special_tokens=False,
        echo=True,
    )
    neutral = SamplingParams(max_tokens=1)
    assert not [
        name
        for name in params.__dataclass_fields__
        if getattr(params, name) == getattr(neutral, name)
    ], "each field of this test has a value of its own"
    jobs = tuple(
        Job((Row(i, str(i)),), (Prompt((1, 2)),), p) for i, p in enumerate([params, neutral])
    )

    assert comes_back(jobs)


def test_every_prompt_and_kind_comes_back_as_it_was() -> None:
    prompts = (
        Prompt((1, 2**32 - 1), scored_from=1),
        Prompt((7,), scored_from=1, num_dropped=9),
        Prompt((3, 4)),
    )
    scoring = Scoring(ScoreType.CHOICES, (TextSize(3, 1), TextSize(0, 2)), 5)
    jobs = tuple(
        Job((Row(0, "r"),), prompts, SamplingParams(0), kind, scoring=scoring) for kind in JobKind
    )

    assert comes_back(jobs)


def test_for_lines_a_shard_lacks_only_ids_that_no_line_shows() -> None:
    prompts = (Prompt((1, 2, 3), scored_from=1, num_dropped=9), Prompt((3, 4), num_dropped=1))
    plain, echoed = SamplingParams(1, seed=2**64 - 1), SamplingParams(1, echo=True)
    jobs = [Job((Row(0, "r"),), prompts, params) for params in (plain, echoed)]

    found = decode_shard(encode_shard(shard_of(*jobs)), for_lines=True)

    assert found.jobs[0] == replace(jobs[0], prompts=(prompts[0], Prompt((), num_dropped=1)))
    assert found.jobs[1] == jobs[1] and found.model == shard_of().model


def comes_back(jobs: tuple[Job, ...]) -> bool:
    return decode_shard(encode_shard(shard_of(*jobs))) == shard_of(*jobs)


def shard_of(*jobs: Job) -> Shard:
    pin = ModelPin("m", "r", "t", "float32")
    return Shard("acme", "batch_1", "run-1", 0, Endpoint.CHAT, pin, jobs)


def test_floats_are_kept_to_the_last_bit() -> None:
    value = struct.unpack("<f", struct.pack("<f", -1.2345678e-8))[0]
    choice = Choice((1,), "", FinishReason.STOP, (TokenLogprob(value, ((2, value),)),), (0,))
    segment = Segment("a", "b", "c", 0, "d", 0, (RowResult(0, (), choices=(choice,)),))

    assert decode_segment(encode_segment(segment)).results == segment.results
