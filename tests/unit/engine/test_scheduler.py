"""Properties of the Scheduler: progress, fairness, and budgets that are never exceeded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.types import FinishReason, Job, Prompt, Row, SamplingParams
from gristmill_worker.engine.base import NOTHING
from gristmill_worker.engine.block_manager import BlockManager
from gristmill_worker.engine.scheduler import Scheduler
from gristmill_worker.engine.sequence import Sequence, SequenceStatus


def make_sequence(
    arrival: int, prompt_ids: list[int], max_tokens: int, *, ignore_eos: bool = False
) -> Sequence:
    row, prompt = Row(arrival, str(arrival)), Prompt(tuple(prompt_ids))
    job = Job((row,), (prompt,), SamplingParams(max_tokens, ignore_eos=ignore_eos))
    return Sequence(str(arrival), job, arrival, NOTHING)


def make_scheduler(num_blocks: int, block_size: int = 4, **limits: float) -> Scheduler:
    chosen = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "expected_output_tokens": 1.0}
    return Scheduler(BlockManager(num_blocks, block_size), **{**chosen, **limits})  # type: ignore[arg-type]


def step(scheduler: Scheduler) -> tuple[list[Sequence], int]:
    """One step with a model that always answers 1. Returns the ended and the number preempted."""
    plan = scheduler.schedule()
    assert plan.num_tokens <= scheduler.max_num_batched_tokens
    assert len(scheduler.running) <= scheduler.max_num_seqs
    assert len({id(item.seq) for item in plan.scheduled}) == len(plan.scheduled)
    for item in plan.scheduled:
        assert item.seq.status is SequenceStatus.RUNNING
        end = item.seq.num_computed_tokens + item.num_tokens
        assert len(item.seq.block_table) * scheduler.block_manager.block_size >= end
    scheduler.advance(plan)
    ended = []
    for item in plan.scheduled:
        if item.seq.num_uncomputed_tokens == 0:
            item.seq.token_ids.append(1)
            if item.seq.num_generated_tokens == item.seq.params.max_tokens:
                item.seq.finish_reason = FinishReason.LENGTH
                ended.append(item.seq)
    scheduler.finish(ended)
    scheduler.block_manager.check_integrity(scheduler.running)
    return ended, plan.num_preempted


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=20), st.integers(1, 20)),
        min_size=1,
        max_size=12,
    ),
    num_blocks=st.integers(10, 20),
    expected_output_tokens=st.sampled_from([1.0, 8.0, 100.0]),
)
def test_every_row_ends_in_a_bounded_number_of_steps(
    rows: list[tuple[list[int], int]], num_blocks: int, expected_output_tokens: float
) -> None:
    scheduler = make_scheduler(num_blocks, expected_output_tokens=expected_output_tokens)
    for arrival, (prompt_ids, max_tokens) in enumerate(rows):
        scheduler.add(make_sequence(arrival, prompt_ids, max_tokens))
    ended: list[Sequence] = []

    for _ in range(sum(len(prompt) + limit for prompt, limit in rows) * 4 + 10):
        ended += step(scheduler)[0]

    assert len(ended) == len(rows)
    assert scheduler.block_manager.num_free_blocks == num_blocks


def test_a_step_mixes_rows_that_decode_with_a_chunk_of_a_prompt() -> None:
    scheduler = make_scheduler(32, max_num_batched_tokens=8)
    scheduler.add(make_sequence(0, [5] * 3, 10))
    step(scheduler)
    scheduler.add(make_sequence(1, [6] * 20, 10))

    plan = scheduler.schedule()

    assert [(item.seq.arrival, item.num_tokens) for item in plan.scheduled] == [(0, 1), (1, 7)]


def test_only_the_newest_row_is_preempted_and_the_oldest_never() -> None:
    scheduler = make_scheduler(10, max_num_batched_tokens=16)
    oldest, newest = make_sequence(0, [5] * 8, 30), make_sequence(1, [6] * 8, 30)
    scheduler.add(oldest)
    scheduler.add(newest)

    num_preempted = 0
    while oldest.finish_reason is None:
        num_preempted += step(scheduler)[1]
    assert oldest.num_preemptions == 0 and newest.num_preemptions == num_preempted >= 1
    while newest.finish_reason is None:
        step(scheduler)

    assert newest.num_generated_tokens == 30


def test_admission_expects_the_output_and_so_avoids_preemption() -> None:
    scheduler = make_scheduler(10, max_num_batched_tokens=16, expected_output_tokens=100.0)
    for arrival in range(3):
        scheduler.add(make_sequence(arrival, [arrival] * 8, 30))

    preempted, ended = 0, 0
    while ended < 3:
        gone, num_preempted = step(scheduler)
        preempted, ended = preempted + num_preempted, ended + len(gone)

    assert preempted == 0


def test_B32_a_long_prompt_is_not_overtaken_by_short_ones_that_share_a_prefix() -> None:
    scheduler = make_scheduler(4, block_size=4, max_num_batched_tokens=16)
    scheduler.add(make_sequence(0, [3] * 9, 2))
    for arrival in range(1, 201):
        scheduler.add(make_sequence(arrival, [7] * 3, 1))
    order: list[int] = []

    while len(order) < 201:
        order += [seq.arrival for seq in step(scheduler)[0]]

    assert order.index(0) < 32
    assert [arrival for arrival in order if arrival] == list(range(1, 201))


def test_a_row_waits_only_while_its_prefix_is_being_computed() -> None:
    scheduler = make_scheduler(64, max_num_batched_tokens=64)
    scheduler.add(make_sequence(0, [5] * 12, 3))
    scheduler.add(make_sequence(1, [5] * 12 + [6], 3))
    scheduler.add(make_sequence(2, [9] * 12, 3))

    first = [item.seq.arrival for item in scheduler.schedule().scheduled]

    assert first == [0, 2]
    assert [seq.arrival for seq in scheduler.waiting] == [1]


def test_a_row_waits_for_the_part_of_a_block_that_it_can_copy() -> None:
    scheduler = make_scheduler(64, block_size=16, max_num_batched_tokens=64)
    for arrival, tail in enumerate(([1, 2], [3], [4, 5, 6])):
        scheduler.add(make_sequence(arrival, [*[5] * 16, *[6] * 9, *tail], 3))
    scheduler.add(make_sequence(3, [*[5] * 16, 6, 6, 6, 7], 3))

    first = scheduler.schedule()
    scheduler.advance(first)
    for item in first.scheduled:
        item.seq.token_ids.append(1)
    second = scheduler.schedule()

    assert [(item.seq.arrival, item.num_tokens) for item in first.scheduled] == [(0, 27)]
    block = first.scheduled[0].seq.block_table[1]
    assert [(item.seq.arrival, item.num_tokens, item.forked_from) for item in second.scheduled] == [
        (0, 1, None),
        (1, 1, block),
        (2, 3, block),
        (3, 4, None),
    ]
    assert [item.seq.num_cached_tokens for item in second.scheduled] == [0, 25, 25, 16]


def test_rows_that_begin_alike_and_differ_soon_do_not_wait_for_each_other_again() -> None:
    scheduler = make_scheduler(64, block_size=16, max_num_batched_tokens=64, max_num_seqs=8)
    for arrival in range(6):
        scheduler.add(make_sequence(arrival, [*[5] * 5, 10 + arrival, 7, 7, 7], 3))

    steps = []
    for _ in range(2):
        plan = scheduler.schedule()
        scheduler.advance(plan)
        steps.append([item.seq.arrival for item in plan.scheduled])

    assert steps == [[0], [1, 2, 3, 4, 5]]


def test_near_the_end_the_longest_expected_work_goes_first() -> None:
    scheduler = make_scheduler(64, max_num_seqs=2, max_num_batched_tokens=16)
    for arrival, max_tokens in enumerate([9, 3, 2, 7]):
        scheduler.add(make_sequence(arrival, [arrival] * 3, max_tokens, ignore_eos=True))
    while len(scheduler.waiting) > 1:
        step(scheduler)

    assert [seq.arrival for seq in scheduler.waiting] == [2]


def test_with_more_work_behind_the_order_of_arrival_counts() -> None:
    scheduler = make_scheduler(64, max_num_seqs=2, max_num_batched_tokens=16)
    for arrival, max_tokens in enumerate([9, 3, 2, 7, 8]):
        scheduler.add(make_sequence(arrival, [arrival] * 3, max_tokens, ignore_eos=True))
    while len(scheduler.waiting) > 2:
        step(scheduler)

    assert [seq.arrival for seq in scheduler.waiting] == [3, 4]
