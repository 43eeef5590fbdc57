"""How long a row waited and how long its prompt took, as its receipt says it."""

from __future__ import annotations

from gristmill_worker.engine.decoding import Stretches


def test_waiting_ends_with_the_first_step_and_the_prompt_with_the_first_token() -> None:
    stretches = Stretches(10.0, knows_prefill=True)

    for now in (12.0, 15.0):
        stretches.begin(now)
    for now in (16.0, 20.0):
        stretches.end_prefill(now)

    assert (stretches.queue_s, stretches.prefill_s) == (2.0, 4.0)


def test_a_resumed_row_had_its_first_token_before() -> None:
    stretches = Stretches(10.0, knows_prefill=False)

    stretches.begin(12.0)
    stretches.end_prefill(16.0)

    assert (stretches.queue_s, stretches.prefill_s) == (2.0, None)


def test_a_row_that_ends_as_it_comes_took_no_time() -> None:
    stretches = Stretches(10.0, knows_prefill=True)

    assert (stretches.queue_s, stretches.prefill_s) == (0.0, None)
