"""How fast a Worker says that it is: from its own steps, by the lengths of prompts."""

from __future__ import annotations

import pytest

from gristmill_worker.engine.base import Finished, StepOutput
from gristmill_worker.speeds import Speeds


def step(prefill: int = 0, decode: int = 0, *, advanced: tuple[str, ...] = ()) -> StepOutput:
    return StepOutput(num_prefill_tokens=prefill, num_decode_tokens=decode, advanced=advanced)


def test_nothing_is_known_before_the_first_step() -> None:
    speeds = Speeds()
    speeds.record(StepOutput(), 0.5)

    assert speeds.decode_tokens_per_s is None
    assert speeds.prefill_tokens_per_s == ()


def test_a_long_prompt_counts_when_its_last_piece_is_done() -> None:
    speeds = Speeds()
    speeds.begin("a", 1200)

    speeds.record(step(512), 1.0)
    speeds.record(step(512), 1.0)
    before = speeds.prefill_tokens_per_s
    speeds.record(step(176, advanced=("a",)), 0.5)

    assert before == ()
    assert speeds.prefill_tokens_per_s == ((2048, 480.0),)
    assert speeds.decode_tokens_per_s is None


def test_prompts_of_one_step_share_it_by_their_lengths() -> None:
    speeds = Speeds()
    for seq_id, num_tokens in (("a", 100), ("b", 100), ("c", 300)):
        speeds.begin(seq_id, num_tokens)

    speeds.record(step(500, advanced=("a", "b", "c")), 2.0)

    assert speeds.prefill_tokens_per_s == ((128, 250.0), (512, 250.0))


def test_a_step_of_both_kinds_is_shared_out_by_tokens() -> None:
    speeds = Speeds()
    speeds.begin("a", 96)

    speeds.record(step(96, 32, advanced=("a", "b", "c")), 4.0)

    assert speeds.prefill_tokens_per_s == ((128, 32.0),)
    assert speeds.decode_tokens_per_s == 32.0


def test_what_speeds_tell_adds_up_to_the_time_that_was_taken() -> None:
    speeds = Speeds()
    prefilled, decoded, took_s = 0, 0, 0.0
    for n in range(200):
        speeds.begin(str(n), 64)
        seconds = 0.01 + 0.001 * (n % 7)
        speeds.record(step(64, 10, advanced=(str(n), "other")), seconds)
        prefilled, decoded, took_s = prefilled + 64, decoded + 10, took_s + seconds

    ((_, prefill_per_s),) = speeds.prefill_tokens_per_s
    decode_per_s = speeds.decode_tokens_per_s
    assert decode_per_s is not None
    assert prefilled / prefill_per_s + decoded / decode_per_s == pytest.approx(took_s, rel=0.01)


def test_the_past_fades() -> None:
    speeds = Speeds()
    for _ in range(600):
        speeds.record(step(decode=10), 1.0)
    for _ in range(600):
        speeds.record(step(decode=50), 1.0)

    assert speeds.decode_tokens_per_s == pytest.approx(50, rel=0.01)


def test_jobs_that_generate_nothing_count_at_their_end_and_cancelled_ones_never() -> None:
    speeds = Speeds()
    speeds.begin("embedded", 100)
    speeds.begin("cancelled", 4000)
    speeds.forget("cancelled")
    speeds.forget("unknown")

    speeds.record(StepOutput([Finished("embedded")], num_prefill_tokens=100), 0.5)

    assert speeds.prefill_tokens_per_s == ((128, 200.0),)
