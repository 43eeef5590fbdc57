"""How fast a Worker says that it is: from its own steps, by the lengths of prompts."""

from __future__ import annotations

import pytest

from gristmill.step_speeds import StepSpeeds
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


def test_a_step_of_both_kinds_is_shared_out_by_what_its_tokens_take() -> None:
    speeds = Speeds()
    for n in range(200):  # 0.1 s and 2 ms a row, and 10 ms for each token of a prompt
        num_rows, num_prompt_tokens = 1 + n % 16, 96 * (n % 2)
        speeds.begin(str(n), 96)
        advanced = (str(n),) if num_prompt_tokens else ()
        seconds = 0.1 + 0.002 * num_rows + 0.01 * num_prompt_tokens
        speeds.record(step(num_prompt_tokens, num_rows, advanced=advanced), seconds)

    ((_, prefill_per_s),) = speeds.prefill_tokens_per_s
    assert prefill_per_s == pytest.approx(100, rel=0.02)
    assert speeds.step_time is not None
    assert speeds.step_time.of(64, 0) == pytest.approx(0.1 + 64 * 0.002, rel=0.05)


def test_many_rows_at_once_are_reckoned_from_few_that_a_worker_got() -> None:
    speeds = Speeds()
    for n in range(100):  # one or two rows with much context, as a small KV cache holds
        num_rows = 1 + n % 2
        context = num_rows * (4_000 + 1_000 * (n % 17))
        output = StepOutput(num_decode_tokens=num_rows, kv_used_tokens=context)
        speeds.record(output, 0.06 + 0.0001 * num_rows + context / 2e6)

    found = speeds.step_time

    assert found is not None and speeds.decode_tokens_per_s is not None
    assert speeds.decode_tokens_per_s < 25
    assert found.of(64, 64 * 400) == pytest.approx(0.06 + 0.0064 + 0.0128, rel=0.2)


def test_what_steps_do_not_tell_apart_is_thought_to_cost_little_more_for_more_rows() -> None:
    speeds = Speeds()
    for _ in range(100):
        speeds.record(step(decode=1), 0.1)

    assert speeds.step_time is not None
    assert speeds.step_time.of(1, 0) == pytest.approx(0.1, rel=0.01)
    assert speeds.step_time.of(32, 0) < 0.2


def test_what_a_worker_gets_done_counts_what_the_prefix_cache_had_and_no_idle_time() -> None:
    speeds = Speeds()
    for n in range(400):  # of 1000 tokens of each prompt 100 are computed
        speeds.begin(str(n), 1000)
        speeds.record(step(100, 10, advanced=(str(n),)), 1.0)
        speeds.record(StepOutput(), 5.0)

    assert speeds.tokens_per_s == pytest.approx(110)
    assert speeds.busy_tokens_per_s == pytest.approx(1010, rel=0.1)


def test_a_step_that_takes_long_for_once_hardly_counts() -> None:
    speeds = Speeds()
    for n in range(200):
        speeds.record(step(decode=1 + n % 8), 30.0 if n == 50 else 0.1)

    assert speeds.step_time is not None
    assert speeds.step_time.of(8, 0) == pytest.approx(0.1, rel=0.05)


def test_what_was_not_done_for_days_is_not_reckoned_from_rounding() -> None:
    speeds = StepSpeeds()
    for n in range(100):
        speeds.add(0.03, num_prefill=0, num_decode=4 + n % 5, num_context=1000 + n, ended=())
    for n in range(7000):
        prompts = {"num_prefill": 1000 + n % 7 * 30, "ended": ()}
        speeds.add(0.5, num_steps=100, num_decode=0, num_context=0, **prompts)

    assert speeds.step_time is not None
    assert speeds.step_time.of(64, 64 * 1000) < 1.0


@pytest.mark.parametrize("num_before", [0, 50])
def test_prompts_whose_time_is_lost_in_that_of_rows_are_fast_and_not_unknown(
    num_before: int,
) -> None:
    speeds = StepSpeeds()
    for n in range(num_before + 2000):  # steps with a short prompt happen to take less
        num_prompt_tokens = 4 if n >= num_before and n % 4 == 0 else 0
        speeds.add(
            0.020 if num_prompt_tokens else 0.021,
            num_prefill=num_prompt_tokens,
            num_decode=64,
            num_context=64_000,
            ended=(4,) if num_prompt_tokens else (),
        )

    ((length, rate),) = speeds.prefill_tokens_per_s
    assert length == 128
    assert 1000 < rate < 1_000_000


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
