"""Scheduler and BlockManager under a million random operations.

An operation is one thing that happens to a Sequence: it is added, computes a piece, is preempted,
gets a token, ends, or is cancelled. What must hold is checked as they happen:

* no Block is lost, given twice, or written by two Sequences;
* the slots behind a Sequence hold what it would have computed, shared, forked or its own;
* every Sequence ends;
* no starvation: a Sequence that runs ends within 2 * L + 2 steps of being the oldest that runs (L:
  the most tokens of a row), and one that waits is overtaken by fewer than max_num_seqs others;
* all of it also where steps are planned before the one before them is taken in, with twice the
  bound: a row whose drafts are under way sits out;
* bounded preemption: the oldest is never preempted; a Sequence is thrown out at most once for each
  Block that those before it may grow by, and all together less than once in four that end.
"""

from __future__ import annotations

import random

import pytest

from gristmill.types import FinishReason, Job, Prompt, Row, SamplingParams
from gristmill_worker.engine.base import NOTHING, Generated
from gristmill_worker.engine.block_manager import BlockManager
from gristmill_worker.engine.plan import Scheduled, SchedulerOutput
from gristmill_worker.engine.scheduler import Drafting, Scheduler
from gristmill_worker.engine.sequence import Sequence, SequenceStatus


class Life:
    """One engine without a model: rows come at random, the answers are random tokens."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.block_size = self.chance.choice((1, 3, 4, 16))
        self.num_blocks = self.chance.randint(64 // self.block_size + 2, 400 // self.block_size + 4)
        self.max_num_seqs = self.chance.randint(1, 12)
        self.longest = min(120, self.num_blocks * self.block_size)
        self.budget = self.max_num_seqs + self.chance.choice((0, 1, 16, 64))
        self.is_ahead = self.chance.random() < 0.5
        self.scheduler = Scheduler(
            BlockManager(
                self.num_blocks, self.block_size, prefix_caching=self.chance.random() < 0.8
            ),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            expected_output_tokens=self.chance.choice((1.0, 8.0, 64.0)),
            drafting=self.chance.choice((None, Drafting(16, self.longest))),
            foresees_up_to=self.longest if self.is_ahead else None,
        )
        self.prefixes = [self._tokens(self.chance.randint(1, self.longest // 2)) for _ in range(3)]
        self.live: dict[int, Sequence] = {}
        self.num_added = self.num_ended = self.num_cancelled = self.num_operations = 0
        self.num_preempted = self.most_preempted = self.num_accepted = self.num_forked = 0
        self.num_foreseen = 0
        #: A step that is not taken in yet, and what it has picked for each Sequence.
        self.under_way: SchedulerOutput | None = None
        self.picked: dict[Sequence, list[int]] = {}
        #: What each slot holds: a number that stands for its token and all those before it.
        self.content: dict[int, int] = {}
        self.names: dict[tuple[int, int], int] = {}
        #: The oldest Sequence that runs, and since how many steps it is that.
        self.oldest: Sequence | None = None
        self.steps_as_oldest = 0

    def run(self, num_operations: int) -> None:
        while self.num_operations < num_operations:
            while len(self.live) < 3 * self.max_num_seqs and self.chance.random() < 0.4:
                self._add()
            if self.live and self.chance.random() < 0.01:
                self._cancel(self.chance.choice(list(self.live.values())))
            self._step()
        while self.live:
            self._step()
        assert self.num_added == self.num_ended + self.num_cancelled
        assert self.scheduler.block_manager.num_free_blocks == self.num_blocks
        assert not self.scheduler.running and not self.scheduler.waiting

    def _tokens(self, num: int) -> list[int]:
        return [self.chance.randint(0, 2) for _ in range(num)]

    def _add(self) -> None:
        prompt = self.chance.choice(self.prefixes)[: self.chance.randint(0, self.longest)]
        prompt = (prompt + self._tokens(self.chance.randint(1, 20)))[: self.longest - 2]
        max_tokens = self.chance.randint(1, self.longest - len(prompt))
        resumed = self.chance.randint(0, max_tokens - 1) if self.chance.random() < 0.1 else 0
        generated = self._tokens(resumed)
        row = Row(self.num_added, str(self.num_added))
        job = Job((row,), (Prompt(tuple(prompt)),), SamplingParams(max_tokens))
        resume = Generated(generated, [0] * resumed) if resumed else NOTHING
        seq = Sequence(str(self.num_added), job, self.num_added, resume)
        self.live[seq.arrival] = seq
        self.scheduler.add(seq)
        self.num_added += 1
        self.num_operations += 1

    def _cancel(self, seq: Sequence) -> None:
        self.scheduler.finish([seq])
        self._forget(seq)
        self.num_cancelled += 1

    def _forget(self, seq: Sequence) -> None:
        del self.live[seq.arrival]
        self.most_preempted = max(self.most_preempted, seq.num_preemptions)
        assert seq.block_table == [] and seq.status is SequenceStatus.FINISHED
        self.num_operations += 1

    def _step(self) -> None:
        plan = self.scheduler.schedule()
        self._check(plan)
        self._copy(plan)
        for item in plan.scheduled:
            self._write(item)
        picked = {item.seq: self._pick(item) for item in plan.scheduled if item.reaches_end}
        if not self.is_ahead:
            self._take_in(plan, picked)
        else:
            self.scheduler.begin(plan)
            before, self.under_way = self.under_way, plan
            picked, self.picked = self.picked, picked
            if before is not None:
                self._take_in(before, picked)
        self._check_progress()

    def _take_in(self, plan: SchedulerOutput, picked: dict[Sequence, list[int]]) -> None:
        self.scheduler.advance(plan)
        ended = []
        for item in plan.scheduled:
            seq = item.seq
            self.num_operations += 1
            if not item.reaches_end or item.is_void:
                continue
            if self.is_ahead and self.chance.random() < 0.01:  # the device did not know it
                self.scheduler.make_void(seq)
                picked[seq] = self._pick(item)
            self._append(item, picked[seq])
            if seq.finish_reason:
                ended.append(seq)
        self.scheduler.finish(ended)
        for seq in ended:
            self._forget(seq)
        self.num_ended += len(ended)

    def _slot(self, seq: Sequence, position: int) -> int:
        block = seq.block_table[position // self.block_size]
        return block * self.block_size + position % self.block_size

    def _name(self, before: int, token_id: int) -> int:
        return self.names.setdefault((before, token_id), len(self.names) + 1)

    def _copy(self, plan: SchedulerOutput) -> None:
        """As the KVCache does it: all are read before any is written."""
        read = {}
        for item in plan.scheduled:
            if item.forked_from is None:
                continue
            self.num_forked += 1
            first = item.begin // self.block_size * self.block_size
            for offset in range(self.block_size):
                source = item.forked_from * self.block_size + offset
                read[self._slot(item.seq, first) + offset] = self.content.get(source, 0)
        self.content |= read

    def _write(self, item: Scheduled) -> None:
        seq, begin = item.seq, item.begin
        name = 0
        if begin in (seq.num_cached_tokens, 0) or item.forked_from is not None:
            for position in range(begin):
                name = self._name(name, seq.token_ids[position])
                assert self.content[self._slot(seq, position)] == name, "a stranger's slot"
        else:
            name = self.content[self._slot(seq, begin - 1)]
        known = seq.token_ids[begin : item.end]
        if item.end > seq.num_tokens:
            self.num_foreseen += 1
            known.append(self.picked[seq][0])
        for position, token_id in enumerate([*known, *item.drafts], begin):
            name = self._name(name, token_id)
            self.content[self._slot(seq, position)] = name

    def _pick(self, item: Scheduled) -> list[int]:
        """A token for the Sequence, and one behind each draft; half of these are right."""
        return [
            draft if draft is not None and self.chance.random() < 0.5 else self.chance.randint(0, 2)
            for draft in (*item.drafts, None)
        ]

    def _append(self, item: Scheduled, picked: list[int]) -> None:
        seq, num_accepted = item.seq, 0
        for token_id, draft in zip(picked, (*item.drafts, None), strict=True):
            seq.token_ids.append(token_id)
            if (
                seq.num_generated_tokens >= seq.params.max_tokens
                or self.chance.random() < 0.02
                or seq.num_tokens >= self.longest
            ):
                seq.finish_reason = FinishReason.STOP
            if seq.finish_reason or token_id != draft:
                break
            num_accepted += 1
        if item.drafts:
            self.scheduler.accept_drafts(item, num_accepted)
            self.num_accepted += num_accepted

    def _check(self, plan: SchedulerOutput) -> None:
        is_busy = plan.scheduled or (self.under_way is not None and self.under_way.scheduled)
        assert is_busy or not self.live, "there is work, and nothing is scheduled"
        assert plan.num_tokens <= self.budget
        assert sum(item.num_logits for item in plan.scheduled) <= self.max_num_seqs
        assert len(self.scheduler.running) <= self.max_num_seqs
        self.num_preempted += plan.num_preempted
        self.num_operations += plan.num_preempted
        self.scheduler.block_manager.check_integrity(self.scheduler.running)
        written: set[int] = set()
        for item in plan.scheduled:
            begin = item.begin
            end = begin + item.num_tokens
            assert item.num_known_tokens > 0
            assert item.end <= item.seq.num_tokens + item.seq.num_foreseen_tokens
            assert end < self.longest + 1
            assert not item.drafts or item.reaches_end
            table = item.seq.block_table
            blocks = set(table[begin // self.block_size : -(-end // self.block_size)])
            assert len(table) * self.block_size >= end
            assert not blocks & written, "a Block with two writers"
            written |= blocks
        for seq in self.scheduler.running:  # nor does anybody read what is being written
            done = seq.block_table[: seq.num_computed_tokens // self.block_size]
            assert not set(done) & written

    def _check_progress(self) -> None:
        oldest = min(self.scheduler.running, key=lambda seq: seq.arrival, default=None)
        if oldest is not self.oldest:
            former = self.oldest
            assert (
                former is None
                or former.status is not SequenceStatus.WAITING
                or (oldest is not None and oldest.arrival < former.arrival)
            ), "the oldest was preempted, and by none that is older"
            self.oldest, self.steps_as_oldest = oldest, 0
        if oldest is not None:
            self.steps_as_oldest += 1
            assert self.steps_as_oldest <= self._bound(), f"{oldest.seq_id} starves"
        if not self.scheduler.block_manager.prefix_caching:
            self._check_overtaking()

    def _check_overtaking(self) -> None:
        """Rows that wait for a prefix which is being computed are overtaken; without that, few."""
        admitted = [s.arrival for s in self.scheduler.running]
        for seq in self.scheduler.waiting:
            if not seq.num_preemptions:
                assert all(a < seq.arrival + self.max_num_seqs for a in admitted), "overtaken"

    def _bound(self) -> int:
        """Steps in which the oldest Sequence that runs ends, whatever else there is.

        Decoding rows go first and take at most max_num_seqs - 1 tokens of the budget, so its
        prompt moves by at least one token a step; then it decodes a token a step.
        """
        return (2 * self.longest + 2) * (2 if self.is_ahead else 1)


def _run(num_operations: int, num_lives: int) -> tuple[int, int, int]:
    operations = preempted = ended = accepted = forked = foreseen = 0
    for seed in range(num_lives):
        life = Life(seed)
        life.run(num_operations // num_lives)
        operations += life.num_operations
        preempted += life.num_preempted
        ended += life.num_ended
        accepted += life.num_accepted
        forked += life.num_forked
        foreseen += life.num_foreseen
        # A row is thrown out when one of those before it needs a Block, so not more often than
        # those that ran beside it could need Blocks.
        assert life.most_preempted <= life.max_num_seqs * life.num_blocks
    # Drafts, forks and tokens that nobody has seen yet are part of it.
    assert accepted > ended / 10 and forked > ended / 10 and foreseen > ended
    return operations, preempted, ended


def test_fifty_thousand_random_operations() -> None:
    operations, preempted, ended = _run(50_000, num_lives=25)

    assert operations >= 50_000 and ended > 1000
    assert preempted > 50  # the lives are hard enough to mean something
    assert preempted < ended / 4


@pytest.mark.slow
def test_a_million_random_operations() -> None:
    operations, preempted, ended = _run(1_000_000, num_lives=200)

    assert operations >= 1_000_000 and ended > 20_000
    assert preempted < ended / 4
