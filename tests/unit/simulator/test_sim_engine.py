"""The arithmetic of continuous batching: by hand, step by step, and beside the real Scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fleet import MACHINE

from gristmill.simulator.engine import FIRST_EXPECTED_OUTPUT, Engine, Sequence
from gristmill.simulator.machine import Machine
from gristmill.simulator.work import Row
from gristmill.types import FinishReason, Job, Prompt, SamplingParams
from gristmill.types import Row as RealRow
from gristmill_worker.engine.base import NOTHING
from gristmill_worker.engine.block_manager import BlockManager
from gristmill_worker.engine.scheduler import Scheduler
from gristmill_worker.engine.sequence import Sequence as RealSequence

ROOMY = Machine(
    "roomy",
    max_row_tokens=4096,
    max_num_seqs=6,
    kv_tokens=2048,
    prefill_tokens_per_s=((128, 2000.0), (512, 1000.0)),
    decode_tokens_per_s=100.0,
    lone_tokens_per_s=25.0,
    context_tokens_per_s=50_000.0,
    max_num_batched_tokens=64,
)


def run(machine: Machine, rows: list[Row], *, one_by_one: bool = False) -> list[float]:
    """When each row has finished; with `one_by_one` a jump is never more than a step.

    What a jump reads of the KV cache is the mean of its steps, so that some come a bit later then.
    """
    engine = Engine(machine)
    seqs = [Sequence(row, None) for row in rows]
    engine.add(seqs)
    now = 0.0
    while (jump := engine.begin(now)) is not None:
        if one_by_one:
            jump.num_steps = 1
        now = jump.ends_at
        engine.end(now)
    return [seq.finished_at for seq in seqs]


def test_two_rows_as_reckoned_by_hand() -> None:
    # Step 1: the first prompt fills the budget. 2: its second token, and the other prompt.
    # 3: both get their last token.
    rows = [Row(0, 100, 3, 8), Row(1, 50, 2, 8)]

    assert run(MACHINE, rows) == pytest.approx([0.3, 0.3])


def test_a_third_row_waits_until_one_of_two_has_finished() -> None:
    rows = [Row(0, 50, 5, 8), Row(1, 50, 2, 8), Row(2, 50, 1, 8)]

    # The first two begin together; the second ends with step 2, the third has step 3.
    assert run(MACHINE, rows) == pytest.approx([0.5, 0.2, 0.3])


def test_a_row_that_does_not_fit_beside_another_waits_for_it() -> None:
    tight = replace(MACHINE, kv_tokens=160)
    rows = [Row(0, 90, 2, 8), Row(1, 90, 1, 8)]

    assert run(tight, rows) == pytest.approx([0.2, 0.3])


def test_steps_last_longer_with_rows_and_context() -> None:
    # 25 tokens/s alone: 40 ms; 6 rows at 100 tokens/s: 60 ms.
    assert ROOMY.step_s(1, 0, 0.0) == pytest.approx(0.04)
    assert ROOMY.step_s(6, 0, 0.0) == pytest.approx(0.06)
    assert ROOMY.step_s(6, 5000, 0.0) == pytest.approx(0.16)
    assert ROOMY.step_s(1, 0, 0.1) == pytest.approx(0.1)


def test_what_was_decoded_before_is_prefilled_and_not_decoded_again() -> None:
    engine = Engine(MACHINE)
    engine.add([Sequence(Row(0, 60, 5, 8), None, done_tokens=4)])

    jump = engine.begin(0.0)

    assert jump is not None
    assert jump.chunks[0][1] == 64
    assert [seq.row.idx for seq in engine.end(jump.ends_at)] == [0]


def test_a_cut_jump_ends_with_the_step_under_way() -> None:
    engine = Engine(MACHINE)
    engine.add([Sequence(Row(0, 50, 20, 32), None)])
    first = engine.begin(0.0)
    assert first is not None
    engine.end(first.ends_at)
    jump = engine.begin(0.1)
    assert jump is not None and jump.num_steps == 19
    assert engine.may_admit()

    ends_at = engine.cut(0.35)

    assert ends_at == pytest.approx(0.4)
    assert engine.end(ends_at) == []
    # 1 token of the prompt's step, 3 of the three steps since.
    assert [num_tokens for _, num_tokens in engine.remove_all(ends_at)] == [4]


ROWS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 30), st.sampled_from([30, 60])),
    min_size=1,
    max_size=20,
).map(lambda found: [Row(i, *one) for i, one in enumerate(found)])


@given(rows=ROWS)
@settings(max_examples=60, deadline=None)
def test_jumps_end_where_single_steps_do(rows: list[Row]) -> None:
    assert run(ROOMY, rows) == pytest.approx(run(ROOMY, rows, one_by_one=True), rel=0.01)


def run_real(machine: Machine, rows: list[Row]) -> list[float]:
    """The real Scheduler, with steps that last as long as the machine says."""
    scheduler = Scheduler(
        BlockManager(machine.kv_tokens // 16, 16),
        max_num_seqs=machine.max_num_seqs,
        max_num_batched_tokens=machine.max_num_batched_tokens,
        expected_output_tokens=FIRST_EXPECTED_OUTPUT,
    )
    seqs, now = [], 0.0
    for row in rows:
        # No two prompts begin alike: nothing is found in the prefix cache.
        prompt = Prompt((1000 + row.idx,) * row.prompt_tokens)
        job = Job((RealRow(row.idx, str(row.idx)),), (prompt,), SamplingParams(row.max_tokens))
        seqs.append(RealSequence(str(row.idx), job, row.idx + 1, NOTHING))
        scheduler.add(seqs[-1])
    ended_at = [0.0] * len(rows)
    while not all(ended_at):
        plan = scheduler.schedule()
        decoding = [item for item in plan.scheduled if item.seq.num_generated_tokens]
        prefilling = [item for item in plan.scheduled if not item.seq.num_generated_tokens]
        now += machine.step_s(
            len(decoding),
            sum(item.seq.num_tokens for item in decoding),
            sum(
                item.num_tokens * machine.prefill_s_per_token(item.seq.num_prompt_tokens)
                for item in prefilling
            ),
        )
        ending = [item.seq for item in plan.scheduled if item.reaches_end]
        scheduler.advance(plan)
        for seq in ending:
            seq.token_ids.append(5)
            if seq.num_generated_tokens == rows[int(seq.seq_id)].output_tokens:
                seq.finish_reason = FinishReason.STOP
                ended_at[int(seq.seq_id)] = now
        scheduler.finish([seq for seq in ending if seq.has_ended])
    return ended_at


@given(rows=ROWS)
@settings(max_examples=40, deadline=None)
def test_rows_end_when_they_do_with_the_real_scheduler(rows: list[Row]) -> None:
    simulated, real = run(ROOMY, rows), run_real(ROOMY, rows)

    assert max(simulated) == pytest.approx(max(real), rel=0.05)
    assert sum(simulated) == pytest.approx(sum(real), rel=0.05)
