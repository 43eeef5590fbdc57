"""Cards and beats of Workers: what a pool is, what goes over the queue and comes back as it was."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.cli.settings_from import settings_from
from gristmill.errors import CorruptDocument, UnsupportedFormat, UsageError
from gristmill.fleet import (
    LOST_AFTER_S,
    OWN_POOL,
    PREFILL_LENGTHS,
    SMALLEST_ROW_CLASS,
    Feature,
    KnownWorker,
    StepTime,
    WorkerBeat,
    WorkerCard,
    WorkerState,
    lane_of,
    pool_of,
    prefill_length,
    row_class,
    worker_class,
)
from gristmill.message_wire import (
    decode_beat,
    decode_bell,
    decode_news,
    decode_pointer,
    encode_beat,
    encode_bell,
    encode_pointer,
)
from gristmill.queues.base import BULK_LANE, MAX_BODY_BYTES, is_lane
from gristmill.types import Bell, ModelPin, ShardPointer

PIN = ModelPin("m", "rev", "tok", "float32")
CARD = WorkerCard("wrk-1", "host", PIN, "cpu", 8192, 64, features=("generate", "score"))
BEAT = WorkerBeat(CARD, 3, WorkerState.READY, 1_000.5)
BELL = Bell("acme", "batch_1", "run-1", 3, "att-1", 7)

COUNTS = st.integers(0, 2**53)
RATES = st.floats(0, 1e9, allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.lists(TEXT, max_size=4).map(tuple)
CARDS = st.builds(
    WorkerCard,
    worker_id=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    host=TEXT,
    model=st.builds(ModelPin, TEXT, TEXT, TEXT, TEXT),
    device=TEXT,
    max_row_tokens=COUNTS,
    max_num_seqs=COUNTS,
    memory_bytes=COUNTS,
    kv_tokens=st.none() | COUNTS,
    features=NAMES,
    adapters=NAMES,
    lanes=NAMES,
    version=TEXT,
    prefill_tokens_per_s=st.lists(st.tuples(COUNTS, RATES), max_size=6).map(tuple),
    decode_tokens_per_s=st.none() | RATES,
    window_tokens=COUNTS,
    step_time=st.none() | st.builds(StepTime, RATES, RATES, RATES),
)
BEATS = st.builds(
    WorkerBeat,
    card=CARDS,
    seq=COUNTS,
    state=st.sampled_from([state for state in WorkerState if state is not WorkerState.LOST]),
    at=RATES,
    tokens_per_s=RATES,
    **{name: COUNTS for name in WorkerBeat.__slots__ if name.startswith(("num_", "kv_"))},
)


@given(BEATS)
def test_a_beat_comes_back_as_it_was(beat: WorkerBeat) -> None:
    assert decode_beat(encode_beat(beat)) == beat
    assert decode_news(encode_beat(beat)) == beat


def test_a_full_beat_fits_into_a_message() -> None:
    speeds = tuple((length, 123456.7) for length in PREFILL_LENGTHS)
    card = replace(
        CARD,
        host="h" * 128,
        model=ModelPin("org/" + "m" * 100, "r" * 64, "t" * 64, "bfloat16"),
        device="cuda NVIDIA H200 something of a long name",
        features=("embed", "generate", "grammar", "logprobs", "score"),
        adapters=tuple(f"adapter-{i}" for i in range(32)),
        lanes=("pool-128k-0123456789abcdef", "bulk"),
        prefill_tokens_per_s=speeds,
        decode_tokens_per_s=1234.5,
        step_time=StepTime(0.01234, 0.0001234, 1.234e-07),
    )

    assert len(encode_beat(replace(BEAT, card=card))) < MAX_BODY_BYTES // 2


@given(st.binary(max_size=200) | st.recursive(st.none() | st.booleans() | st.text(), st.lists))
def test_what_is_no_message_is_refused_and_nothing_else_happens(body: Any) -> None:
    message = body if isinstance(body, bytes) else json.dumps(body).encode()

    for decode in (decode_news, decode_bell, decode_beat, decode_pointer):
        with pytest.raises((CorruptDocument, UnsupportedFormat)):
            decode(message)


WRONG = [
    {"seq": -1},
    {"seq": "3"},
    {"seq": 2**64},
    {"at": -5.0},
    {"state": "lost"},
    {"state": "asleep"},
    {"card": None},
    {"card": asdict(CARD) | {"worker_id": "a b"}},
    {"card": asdict(CARD) | {"worker_id": "x" * 65}},
    {"card": asdict(CARD) | {"worker_id": ""}},
    {"card": asdict(CARD) | {"host": "a\0b"}},
    {"card": asdict(CARD) | {"prefill_tokens_per_s": [[1]]}},
    {"card": asdict(CARD) | {"model": "m"}},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:40])
def test_a_beat_with_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    body = {**json.loads(encode_beat(BEAT)), **wrong}

    with pytest.raises(CorruptDocument):
        decode_beat(json.dumps(body).encode())


@pytest.mark.parametrize(
    "wrong", [{"shard_n": -1}, {"seq": 2.5}, {"tenant_id": "a\0"}, {"seq": None}]
)
def test_a_bell_with_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    body = {**json.loads(encode_bell(BELL)), **wrong}

    with pytest.raises(CorruptDocument):
        decode_news(json.dumps(body).encode())


def test_what_a_newer_sender_says_more_is_passed_over() -> None:
    beat = {**json.loads(encode_beat(BEAT)), "mood": "good"}
    beat["card"]["colour"] = "blue"
    pointer = ShardPointer("acme", "batch_1", "run-1", 0, 4, 99)
    more = {**json.loads(encode_pointer(pointer)), "urgency": 9}

    assert decode_beat(json.dumps(beat).encode()) == BEAT
    assert decode_pointer(json.dumps(more).encode()) == pointer


def test_kinds_of_messages_are_told_apart() -> None:
    assert decode_news(encode_bell(BELL)) == BELL
    # As an older control side has it: it drops what it does not know, with a line in its log.
    with pytest.raises(CorruptDocument, match="A bell message was expected, a beat message"):
        decode_bell(encode_beat(BEAT))
    with pytest.raises(CorruptDocument, match="A bell or beat message"):
        decode_news(encode_pointer(ShardPointer("acme", "batch_1", "run-1", 0, 4, 99)))
    other = {**json.loads(encode_beat(BEAT)), "v": 99}
    with pytest.raises(UnsupportedFormat, match="v99"):
        decode_news(json.dumps(other).encode())


@given(st.integers(1, 2**40))
def test_size_classes_of_workers_and_rows_fit_together(num_tokens: int) -> None:
    of_worker, of_row = worker_class(num_tokens), row_class(num_tokens)

    assert of_worker <= num_tokens < 2 * of_worker
    assert of_row >= max(num_tokens, SMALLEST_ROW_CLASS)
    assert of_row < 2 * max(num_tokens, SMALLEST_ROW_CLASS)
    # A Worker runs every row of its class, and a row of its class fits into it.
    if of_worker >= SMALLEST_ROW_CLASS:
        assert row_class(of_worker) == of_worker == worker_class(of_worker)


@given(CARDS)
def test_the_lane_of_a_pool_is_a_lane_whatever_the_card_says(card: WorkerCard) -> None:
    assert is_lane(lane_of(card))


def test_workers_of_the_same_abilities_and_device_are_a_pool_and_no_others() -> None:
    alike = replace(
        CARD,
        worker_id="wrk-2",
        host="elsewhere",
        model=replace(PIN, name="called otherwise"),
        max_row_tokens=9000,
        max_num_seqs=8,
        memory_bytes=5,
        kv_tokens=7,
        lanes=("bulk",),
        features=(Feature.SCORE, Feature.GENERATE),
        decode_tokens_per_s=5.0,
    )
    others = [
        replace(CARD, model=replace(PIN, revision="other")),
        replace(CARD, model=replace(PIN, tokenizer_hash="other")),
        replace(CARD, model=replace(PIN, dtype="bfloat16")),
        replace(CARD, max_row_tokens=8191),
        replace(CARD, max_row_tokens=16384),
        replace(CARD, features=("generate",)),
        replace(CARD, adapters=("one",)),
        replace(CARD, device="cuda"),
    ]

    assert pool_of(alike) == pool_of(CARD) and lane_of(alike) == lane_of(CARD)
    assert len({lane_of(card) for card in (CARD, *others)}) == 1 + len(others)


def test_the_name_of_a_pools_lane_stays_what_it_is() -> None:
    # Workers and control side of two versions must agree on it.
    assert lane_of(CARD) == "pool-8k-6925dfdcf236a0e8"


@given(st.integers(0, 10**7))
def test_prompts_are_of_the_class_that_they_fit_into(num_tokens: int) -> None:
    length = prefill_length(num_tokens)

    assert length in PREFILL_LENGTHS
    assert num_tokens <= length or length == PREFILL_LENGTHS[-1]
    assert not any(num_tokens <= shorter for shorter in PREFILL_LENGTHS if shorter < length)


def test_a_worker_that_says_nothing_is_lost_unless_it_has_ended() -> None:
    ready = KnownWorker(BEAT, 100, 100)
    ended = KnownWorker(replace(BEAT, state=WorkerState.ENDED), 100, 100)

    assert ready.state_at(100 + LOST_AFTER_S) is WorkerState.READY
    assert ready.state_at(100 + LOST_AFTER_S + 1) is WorkerState.LOST
    assert ready.is_alive_at(100) and not ready.is_alive_at(100 + LOST_AFTER_S + 1)
    assert ended.state_at(10**9) is WorkerState.ENDED and not ended.is_alive_at(100)


@pytest.mark.parametrize("wrong", ["control", "a b", "", " , ", "x" * 49, "pool,-x"])
def test_lanes_that_nobody_can_listen_to_are_refused_with_the_value_seen(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"GRISTMILL_LANES is set to .*write names of Lanes"):
        settings_from(lanes=wrong)


def test_lanes_are_named_once_each_in_their_order() -> None:
    assert settings_from(lanes="mine, pool,mine").lane_names == ("mine", OWN_POOL)
    assert settings_from().lane_names == (OWN_POOL, BULK_LANE)
