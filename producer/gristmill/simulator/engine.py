"""Continuous batching as arithmetic: the Scheduler's rules, over jumps of many equal steps.

As the real one: rows that decode come first with a token each, then prompts under way, then those
that wait, in the order of their arrival, as far as `max_num_batched_tokens`, `max_num_seqs` and the
KV cache allow; what a row is expected to need is set aside when it is admitted. Steps between two
changes are alike, so they are taken in one jump. Left out: the prefix cache, draft tokens, and
preemption (what answers need beyond what was set aside is not missed).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gristmill.simulator.machine import Machine
from gristmill.simulator.work import Row
from gristmill.step_speeds import StepSpeeds

#: As in the worker's engine/scheduler.py and engine/engine.py.
_LEARNING_RATE = 0.05
FIRST_EXPECTED_OUTPUT = 128.0


class Sequence:
    """A row inside the engine. `done_tokens` of its answer were decoded by earlier Attempts.
    `holder` is whose row it is, for the Worker."""

    __slots__ = (
        "arrival",
        "begun_at",
        "done_tokens",
        "finished_at",
        "holder",
        "left",
        "reserved",
        "row",
        "s_per_token",
    )

    def __init__(self, row: Row, holder: Any, done_tokens: int = 0) -> None:
        self.row = row
        self.holder = holder
        self.done_tokens = done_tokens
        self.arrival = 0
        self.begun_at = -1.0
        self.finished_at = -1.0
        #: Tokens that are still to be prefilled; what was decoded before is prefilled too.
        self.left = row.prompt_tokens + done_tokens
        self.reserved = 0
        self.s_per_token = 0.0


@dataclass(slots=True)
class Jump:
    """`num_steps` equal steps from `began` on. `chunks`: what each step prefills, by Sequence."""

    began: float
    step_s: float
    num_steps: int
    num_decoding: int
    #: Tokens in the KV cache, on the mean of the steps.
    num_context: float
    chunks: list[tuple[Sequence, int]]

    @property
    def ends_at(self) -> float:
        return self.began + self.num_steps * self.step_s


class Engine:
    """Belongs to one simulated Worker, which calls `begin` and, when the jump is over, `end`."""

    def __init__(self, machine: Machine, *, turn_s: float = 0.0) -> None:
        """`turn_s` is what a Worker's loop takes beside each step."""
        self._machine = machine
        self._turn_s = turn_s
        self.speeds = StepSpeeds()
        self._waiting: deque[Sequence] = deque()
        self._is_sorted = True
        self._prefilling: deque[Sequence] = deque()
        #: (the step of its last token, arrival, Sequence): the next to finish in front.
        self._decoding: list[tuple[int, int, Sequence]] = []
        #: Steps so far in which rows decoded, and the tokens that those rows have in the KV cache.
        self._num_steps = 0
        self._num_context_tokens = 0
        self._num_reserved = 0
        self._num_arrivals = 0
        self._expected_output = FIRST_EXPECTED_OUTPUT
        #: Expected tokens of rows that do not decode yet.
        self.num_tokens_ahead = 0
        self.jump: Jump | None = None

    @property
    def num_live(self) -> int:
        return len(self._waiting) + self._num_running

    @property
    def _num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    def add(self, seqs: Iterable[Sequence]) -> None:
        for seq in seqs:
            self._num_arrivals += 1
            seq.arrival = self._num_arrivals
            seq.s_per_token = self._machine.prefill_s_per_token(seq.row.prompt_tokens)
            self._waiting.append(seq)
            self.num_tokens_ahead += seq.row.prompt_tokens + seq.row.expected_output
        self._is_sorted = False

    def begin(self, now: float) -> Jump | None:
        """The next jump; None without work. There must be none under way."""
        assert self.jump is None, "one jump at a time"
        machine, num_decoding = self._machine, len(self._decoding)
        budget = machine.max_num_batched_tokens - num_decoding
        chunks: list[tuple[Sequence, int]] = []
        for seq in self._prefilling:
            if budget <= 0:
                break
            chunks.append((seq, min(seq.left, budget)))
            budget -= chunks[-1][1]
        self._admit(now, budget, chunks)
        if not num_decoding and not chunks:
            return None
        num_steps = self._decoding[0][0] - self._num_steps if num_decoding else 1 << 60
        if chunks:
            seq, num_tokens = chunks[0]
            # Alike are only steps that one prompt fills without coming to its end.
            is_filled = len(chunks) == 1 and seq.left > num_tokens
            num_steps = min(num_steps, (seq.left - 1) // num_tokens if is_filled else 1)
        prefill_s = sum(num_tokens * seq.s_per_token for seq, num_tokens in chunks)
        # Of contexts that grow by a token a step, the mean.
        context = self._num_context_tokens + num_decoding * (num_steps - 1) / 2
        step_s = machine.step_s(num_decoding, context, prefill_s) + self._turn_s
        held = context + sum(
            seq.row.prompt_tokens + seq.done_tokens - seq.left for seq, _ in chunks
        )
        self.jump = Jump(now, step_s, num_steps, num_decoding, held, chunks)
        return self.jump

    def may_admit(self) -> bool:
        """Whether a row that is added could begin with the next step of the jump under way."""
        jump = self.jump
        if jump is None or jump.num_steps == 1:
            return False
        return not jump.chunks and self._num_running < self._machine.max_num_seqs

    def cut(self, now: float) -> float:
        """End the jump with the step that is under way; when that will be."""
        jump = self.jump
        assert jump is not None, "there is a jump to cut"
        num_begun = int((now - jump.began) / jump.step_s) + 1
        jump.num_steps = min(jump.num_steps, num_begun)
        return jump.ends_at

    def end(self, now: float) -> list[Sequence]:
        """Take the steps of the jump into account; the Sequences that have finished by `now`."""
        jump, self.jump = self.jump, None
        assert jump is not None, "there is a jump to end"
        finished: list[Sequence] = []
        if jump.num_decoding:
            self._num_steps += jump.num_steps
            self._num_context_tokens += jump.num_steps * jump.num_decoding
            while self._decoding and self._decoding[0][0] <= self._num_steps:
                seq = heapq.heappop(self._decoding)[2]
                self._num_context_tokens -= seq.row.prompt_tokens + seq.row.output_tokens
                finished.append(seq)
        num_prefill, ended = 0, []
        for seq, num_tokens in jump.chunks:
            num_prefill += num_tokens * jump.num_steps
            seq.left -= num_tokens * jump.num_steps
            if seq.left <= 0:
                self._prefilling.remove(seq)
                self.num_tokens_ahead -= seq.row.prompt_tokens + seq.row.expected_output
                self._decode(seq, finished)
                ended.append(seq.row.prompt_tokens + seq.done_tokens)
        self.speeds.add(
            jump.step_s,
            num_steps=jump.num_steps,
            num_decode=jump.num_decoding,
            num_prefill=num_prefill / jump.num_steps,
            num_context=jump.num_context,
            ended=ended,
        )
        for seq in finished:
            seq.finished_at = now
            self._num_reserved -= seq.reserved
            error = seq.row.output_tokens - self._expected_output
            self._expected_output += _LEARNING_RATE * error
        return finished

    def remove_all(self, now: float) -> list[tuple[Sequence, int]]:
        """All that is live, with the tokens that each had decoded by `now`, and nothing is left."""
        num_steps = self._num_steps
        if self.jump is not None and self.jump.num_decoding:
            num_steps += min(int((now - self.jump.began) / self.jump.step_s), self.jump.num_steps)
        left = [(seq, seq.done_tokens) for seq in (*self._waiting, *self._prefilling)]
        for end_step, _, seq in self._decoding:
            left.append((seq, max(seq.row.output_tokens - (end_step - num_steps), 0)))
        self._waiting.clear()
        self._prefilling.clear()
        self._decoding.clear()
        self._num_context_tokens = self._num_reserved = self.num_tokens_ahead = 0
        self.jump = None
        return sorted(left, key=lambda pair: pair[0].arrival)

    def _decode(self, seq: Sequence, finished: list[Sequence]) -> None:
        """Its prompt is computed, and with that its next token is known."""
        num_left = seq.row.output_tokens - seq.done_tokens - 1
        if num_left <= 0:
            finished.append(seq)
            return
        heapq.heappush(self._decoding, (self._num_steps + num_left, seq.arrival, seq))
        self._num_context_tokens += seq.row.prompt_tokens + seq.done_tokens + 1

    def _admit(self, now: float, budget: int, chunks: list[tuple[Sequence, int]]) -> None:
        machine = self._machine
        self._put_longest_first()
        while self._waiting and budget > 0 and self._num_running < machine.max_num_seqs:
            seq = self._waiting[0]
            needed = machine.blocks(seq.left + self._expected_more(seq))
            if self._num_running and self._num_reserved + needed > machine.kv_tokens:
                break
            self._waiting.popleft()
            seq.reserved, seq.begun_at = needed, now
            self._num_reserved += needed
            self._prefilling.append(seq)
            chunks.append((seq, min(seq.left, budget)))
            budget -= chunks[-1][1]

    def _put_longest_first(self) -> None:
        """When no more wait than fit into one step (scheduler.py says why)."""
        if self._is_sorted or len(self._waiting) > self._machine.max_num_seqs:
            return
        self._is_sorted = True
        order = sorted(self._waiting, key=lambda seq: (-self._expected_more(seq), seq.arrival))
        self._waiting = deque(order)

    def _expected_more(self, seq: Sequence) -> int:
        expected = min(seq.row.max_tokens, self._expected_output)
        return max(1, round(expected - seq.done_tokens))
