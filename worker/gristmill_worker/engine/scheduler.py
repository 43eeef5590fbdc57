"""Decides how many tokens each Sequence computes in the next step.

There are no phases. Each Sequence has token ids, and `num_computed_tokens` of them are in the KV
cache; a step lets it catch up. A prompt that is far behind takes a chunk, a row that decodes is one
token behind, and both share the step. What bounds a step: `max_num_batched_tokens` (time and
activation memory), `max_num_seqs` (rows of logits) and the free Blocks.

What must stay true:

* Progress: the Sequence that arrived first among the running ones is never preempted, and it fits
  into the cache alone (`Engine.add` sees to it), so it always gets to its end.
* Fairness: Sequences are admitted in the order of their arrival. One that finds no room holds back
  all behind it; only one that waits for a shared prefix, which a running Sequence computes at this
  moment, is stepped over. When no more wait than fit into one step, the end of the batch may be
  near: then the longest expected work goes first, so that the last step is not one lonely row, but
  nobody is overtaken by any of those that arrived `max_num_seqs` or more behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from gristmill_worker.engine.block_manager import BlockManager, Prefix
from gristmill_worker.engine.drafter import worthwhile_drafts
from gristmill_worker.engine.plan import Scheduled, SchedulerOutput
from gristmill_worker.engine.sequence import Sequence, SequenceStatus
from gristmill_worker.engine.underway import Underway


@dataclass(frozen=True, slots=True)
class Drafting:
    """When draft tokens pay, and how long a row may get. See drafter.py for `fixed_tokens`."""

    fixed_tokens: int
    max_model_len: int


class Scheduler:
    """Holds the waiting and the running Sequences; only it changes a Sequence's status."""

    #: Waiting Sequences that are looked at in one step, when those before wait for a prefix.
    _LOOKAHEAD = 64
    #: Weight of the newest finished row in the learned output length.
    _LEARNING_RATE = 0.05

    def __init__(
        self,
        block_manager: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        expected_output_tokens: float,
        drafting: Drafting | None = None,
        foresees_up_to: int | None = None,
    ) -> None:
        """`foresees_up_to` is how long a row may get, where steps are begun (see `begin`)."""
        assert max_num_batched_tokens >= max_num_seqs, "every decoding row needs one token a step"
        self.block_manager = block_manager
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._drafting = drafting
        self._foresees_up_to = foresees_up_to
        self._begun: list[SchedulerOutput] = []
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        #: Learned from the rows that finish; the argument is the guess before any has.
        self._expected_output = expected_output_tokens

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def schedule(self) -> SchedulerOutput:
        """Plan one step. Blocks for all its tokens are in place when it returns."""
        scheduled: list[Scheduled] = []
        num_preempted = self._schedule_running(scheduled)
        budget = self.max_num_batched_tokens - sum(item.num_tokens for item in scheduled)
        if num_preempted == 0:  # a Sequence that was just thrown out must not come back at once
            self._admit(scheduled, budget)
        if self._drafting is not None:
            self._add_drafts(scheduled, self._drafting)
        return SchedulerOutput(tuple(scheduled), num_preempted)

    def begin(self, output: SchedulerOutput) -> None:
        """The step is under way: others may be planned before its results are known.

        A row goes on as if its next token were known, unless it is bound to end with it, or has to
        know it: then it sits out until `advance`.
        """
        self._begun.append(output)
        for item in output.scheduled:
            item.seq.num_tokens_under_way += item.num_known_tokens
            item.seq.num_foreseen_tokens += self._foresees(item)

    def advance(self, output: SchedulerOutput) -> None:
        """Take note that the step was computed. Drafts do not count before `accept_drafts`.

        The tokens that it yields, if it was begun, have to be added before the next plan.
        """
        was_begun = output in self._begun
        if was_begun:
            self._begun.remove(output)
        for item in output.scheduled:
            if item.is_void:
                continue
            if was_begun:
                item.seq.num_tokens_under_way -= item.num_known_tokens
                item.seq.num_foreseen_tokens -= self._foresees(item)
            self._advance(item.seq, item.num_known_tokens)

    def forget_forks(self, output: SchedulerOutput) -> None:
        """The step could not be launched. Whether its copies were made nobody knows, so what they
        hold is computed."""
        for item in output.scheduled:
            if item.forked_from is not None:
                item.seq.num_computed_tokens -= item.begin % self.block_manager.block_size

    def make_void(self, seq: Sequence) -> None:
        """What steps under way compute of a Sequence does not count: it was foreseen wrongly."""
        seq.life += 1
        seq.num_tokens_under_way = seq.num_foreseen_tokens = 0

    def _foresees(self, item: Scheduled) -> bool:
        """Whether the token behind the one that `item` yields is computed before that is known."""
        seq, num_tokens = item.seq, item.end + 1
        return (
            self._foresees_up_to is not None
            and num_tokens < self._foresees_up_to
            and num_tokens - seq.num_prompt_tokens < seq.params.max_tokens
            and item.reaches_end
            and not item.drafts
            and seq.may_look_ahead
        )

    def accept_drafts(self, item: Scheduled, num_accepted: int) -> None:
        """The first drafts of `item` were right, and the Sequence has taken them in."""
        item.seq.drafter.learn(num_drafts=len(item.drafts), num_accepted=num_accepted)
        self._advance(item.seq, num_accepted)

    def _advance(self, seq: Sequence, num_tokens: int) -> None:
        before = seq.num_computed_tokens
        seq.num_computed_tokens += num_tokens
        self.block_manager.register_computed(seq, previously_computed=before)

    def finish(self, seqs: Iterable[Sequence]) -> None:
        """Take out Sequences that have ended or are cancelled, and free their Blocks."""
        ended = list(seqs)
        for seq in ended:
            if seq.status is SequenceStatus.WAITING:
                self.waiting.remove(seq)
            seq.status = SequenceStatus.FINISHED
            self.make_void(seq)
            self.block_manager.free(seq)
            if seq.finish_reason is not None and seq.num_generated_tokens:
                error = seq.num_generated_tokens - self._expected_output
                self._expected_output += self._LEARNING_RATE * error
        if ended:
            self.running = [seq for seq in self.running if seq.status is SequenceStatus.RUNNING]

    def _schedule_running(self, scheduled: list[Scheduled]) -> int:
        """Rows that decode first, then prompts under way; each in the order of arrival."""
        budget = self.max_num_batched_tokens
        num_preempted = 0
        missing = [(seq.num_uncomputed_tokens, seq) for seq in self.running]
        for num_uncomputed, seq in sorted(missing, key=lambda pair: pair[0] > 1):
            if seq.status is not SequenceStatus.RUNNING:
                continue  # preempted for one of those before it
            num_tokens = min(num_uncomputed, budget)
            if num_tokens == 0:
                continue
            item = Scheduled.next_of(seq, num_tokens)
            while not self.block_manager.extend(seq, item.end):
                victim = self._preempt_newest(scheduled)
                budget = self.max_num_batched_tokens - sum(item.num_tokens for item in scheduled)
                num_preempted += 1
                if victim is seq:
                    break
            else:
                scheduled.append(item)
                budget -= num_tokens
        return num_preempted

    def _preempt_newest(self, scheduled: list[Scheduled]) -> Sequence:
        """Throw out the Sequence that arrived last; it will be computed again from its ids."""
        victim = max(self.running, key=lambda seq: seq.arrival)
        self.running.remove(victim)
        scheduled[:] = [item for item in scheduled if item.seq is not victim]
        self.block_manager.free(victim)
        self.make_void(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = SequenceStatus.WAITING
        self.waiting.appendleft(victim)
        return victim

    def _admit(self, scheduled: list[Scheduled], budget: int) -> None:
        if not self.waiting or budget <= 0 or len(self.running) >= self.max_num_seqs:
            return  # as in most steps, and what follows looks at all rows
        underway = Underway(self.block_manager, self.running)
        reserved = sum(self._expected_growth(seq) for seq in self.running)
        if len(self.waiting) <= self.max_num_seqs:
            self._put_longest_first()
        stepped_over: list[Sequence] = []
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            if len(stepped_over) == self._LOOKAHEAD:
                break
            seq = self.waiting[0]
            prefix = self.block_manager.find_prefix(seq)
            if underway.is_worth_waiting_for(seq, prefix):
                stepped_over.append(self.waiting.popleft())
                continue
            if not self._has_room(seq, prefix, reserved):
                break
            self.waiting.popleft()
            num_tokens = self._start(seq, prefix, budget)
            underway.add(seq)
            reserved += self._expected_growth(seq)
            scheduled.append(Scheduled.next_of(seq, num_tokens, prefix.fork))
            budget -= num_tokens
        self.waiting.extendleft(reversed(stepped_over))

    def _put_longest_first(self) -> None:
        """Those that were preempted stay in front: others would take the room they wait for."""
        oldest = min((seq.arrival for seq in self.waiting), default=0)

        def place(seq: Sequence) -> tuple[int, int, int]:
            if seq.num_preemptions:
                return 0, 0, seq.arrival
            if seq.arrival >= oldest + self.max_num_seqs:
                return 2, 0, seq.arrival
            forced = seq.params.max_tokens if seq.params.ignore_eos else 0
            longest_first = max(forced - seq.num_generated_tokens, self._expected_new_tokens(seq))
            return 1, -longest_first, seq.arrival

        self.waiting = deque(sorted(self.waiting, key=place))

    def _add_drafts(self, scheduled: list[Scheduled], drafting: Drafting) -> None:
        """Fill the places of rows that are not there, as far as it pays."""
        num_tokens = sum(item.num_tokens for item in scheduled)
        num_rows = sum(item.num_logits for item in scheduled)
        room = min(self.max_num_batched_tokens - num_tokens, self.max_num_seqs - num_rows)
        for i, item in enumerate(scheduled):
            if room < 1:
                return
            seq = item.seq
            if not item.reaches_end or item.num_tokens > 1 or not seq.may_look_ahead:
                continue
            if seq.num_foreseen_tokens:
                continue  # nobody knows what the drafts would follow
            worthwhile = worthwhile_drafts(
                seq.drafter.acceptance, num_tokens=num_tokens, fixed_tokens=drafting.fixed_tokens
            )
            left = min(
                seq.params.max_tokens - seq.num_generated_tokens,
                drafting.max_model_len - seq.num_tokens,
            )
            drafts = seq.drafter.draft(seq.token_ids, min(room, worthwhile, left - 1))
            if drafts and self.block_manager.extend(seq, seq.num_tokens + len(drafts)):
                scheduled[i] = item._replace(num_tokens=1 + len(drafts), drafts=tuple(drafts))
                room -= len(drafts)

    def _has_room(self, seq: Sequence, prefix: Prefix, reserved: int) -> bool:
        """Room for what the Sequence has and, beside the others' growth, for what is expected."""
        free = self.block_manager.num_free_blocks
        if not self.running:
            needed = self.block_manager.num_blocks_to_admit(prefix, seq.num_tokens_to_compute)
            return needed <= free
        num_tokens = self._expected_num_tokens(seq)
        return self.block_manager.num_blocks_to_admit(prefix, num_tokens) + reserved <= free

    def _start(self, seq: Sequence, prefix: Prefix, budget: int) -> int:
        self.block_manager.adopt_prefix(seq, prefix)
        seq.num_computed_tokens = prefix.num_tokens
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = min(seq.num_computed_tokens, seq.num_prompt_tokens)
        num_tokens = min(seq.num_uncomputed_tokens, budget)
        has_blocks = self.block_manager.extend(seq, seq.num_computed_tokens + num_tokens)
        assert has_blocks, "_has_room promised the Blocks of all tokens"
        seq.status = SequenceStatus.RUNNING
        self.running.append(seq)
        self.running.sort(key=lambda seq: seq.arrival)
        return num_tokens

    def _expected_growth(self, seq: Sequence) -> int:
        """Blocks beyond those it holds that a running Sequence is expected to need."""
        expected = self.block_manager.num_blocks_for(self._expected_num_tokens(seq))
        return max(0, expected - len(seq.block_table))

    def _expected_num_tokens(self, seq: Sequence) -> int:
        if seq.finish_reason is not None:
            return seq.num_tokens_to_compute
        return seq.num_tokens + self._expected_new_tokens(seq)

    def _expected_new_tokens(self, seq: Sequence) -> int:
        if seq.finish_reason is not None:
            return 0
        expected_output = min(seq.params.max_tokens, self._expected_output)
        return max(1, round(expected_output - seq.num_generated_tokens))
