"""One Worker's try at one Shard: what waits, what runs, what has finished and is not stored yet."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.marks import CloseReason, Mark
from gristmill.queues.base import Lease
from gristmill.types import Job, RowError, RowResult, Segment, Shard, ShardPointer
from gristmill_worker.choices import assemble, computed_choices, cut, of_choice
from gristmill_worker.engine.base import NOTHING, Finished, Generated
from gristmill_worker.evidence import Place, Verdict
from gristmill_worker.segments import SegmentWriter, ShardProgress

#: The first Segment after the open mark comes this soon, so that an Attempt that is killed has
#: shown by then that it got somewhere.
_FIRST_FLUSH_S = 1.0
#: Output tokens that a Job is expected to need at most, when room is counted.
_MAX_EXPECTED_OUTPUT = 256
_CRASHED = RowError(
    "worker_crashed",
    "Workers died again and again while they computed this row and no other. It is not tried "
    "again; the other rows of the batch are not affected.",
    type="server_error",
)


@dataclass(frozen=True, slots=True)
class Start:
    """A Sequence for the Engine to compute, from where an earlier try had come."""

    seq_id: str
    job: Job
    resume: Generated = NOTHING


class Attempt:
    """Holds no clock: its methods are told the time, in seconds."""

    def __init__(
        self,
        shard: Shard,
        pointer: ShardPointer,
        lease: Lease,
        progress: ShardProgress,
        verdict: Verdict = Verdict(),  # noqa: B008  (it is immutable)
        *,
        now: float,
    ) -> None:
        self.id = f"att-{secrets.token_hex(8)}"  # random: a queue's own counts restart and repeat
        self.shard = shard
        self.pointer = pointer
        self.lease = lease
        self.num_tokens = expected_tokens(shard)
        #: Choices that have not ended, by the id of their Sequence.
        self.running: dict[str, Place] = {}
        #: Those of them that the Engine has not got yet.
        self.waiting: deque[Start] = deque()
        #: One Job at a time, and nothing of any other Attempt beside it.
        self.is_isolated = verdict.is_isolated
        #: The Job that runs alone, as the Store knows it.
        self.alone: int | None = None
        #: Called with the result of each Job.
        self.on_ended: Callable[[RowResult], object] = lambda result: None
        #: Whether a Segment of it is on its way to the Store. Then no other may be made.
        self.is_storing = False
        self._condemned = verdict.condemned - progress.finished
        self._suspected = verdict.suspected
        #: Whether the Store knows of a token of the Job that runs alone, from this Attempt.
        self._alone_has_shown = False
        self._order = 1 + max((trace.mark.order for trace in progress.traces), default=0)
        #: Choices that have ended, of Jobs of which others still run.
        self._ended: dict[int, dict[int, Finished]] = {}
        self._writer = SegmentWriter(pointer, self.id)
        self._results: list[RowResult] = []
        self._opened_at = 0.0
        self._flushed_at = now
        self._num_flushes = 0
        left = set(range(len(shard.jobs))) - progress.finished - verdict.condemned
        # What may kill its worker runs when the rest is done (`evidence` says what that proves).
        for job_idx in sorted(left, key=lambda idx: (self._suspected.get(idx, 0), idx)):
            job = shard.jobs[job_idx]
            for choice_idx in computed_choices(job):
                resume = progress.generated.get((job_idx, choice_idx), NOTHING)
                seq_id = f"{self.id}/{job_idx}/{choice_idx}"
                self.running[seq_id] = (job_idx, choice_idx)
                alone = of_choice(job, choice_idx)
                self.waiting.append(Start(seq_id, alone, cut(resume, alone)))
        #: For the log.
        self.beginning = (
            f"jobs={len(shard.jobs)} finished_before={len(progress.finished)} "
            f"tokens_before={sum(len(start.resume.token_ids) for start in self.waiting)} "
            f"isolated={self.is_isolated} condemned={sorted(verdict.condemned)}"
        )

    @property
    def is_done(self) -> bool:
        """Whether no Job is left to run. The last results may still have to be stored."""
        return not self.running

    @property
    def names(self) -> str:
        """For the log."""
        return f"batch={self.shard.batch_id} shard={self.shard.n} attempt={self.id}"

    @property
    def next_alone(self) -> int | None:
        """The Job whose turn is next in isolation; None when all have begun."""
        return self.running[self.waiting[0].seq_id][0] if self.waiting else None

    def opening(self, *, at: float) -> Segment:
        """The open mark. It has to lie in the Store before the Engine gets anything."""
        self._opened_at = at
        self._results += [
            RowResult(idx, self.shard.jobs[idx].rows, error=_CRASHED, finished_at=int(at))
            for idx in sorted(self._condemned)
        ]
        if self.is_isolated:
            self.begin_alone()
        return self._next_segment({}, at=at, closed=None)

    def begin_alone(self) -> None:
        """The next Job has its turn in isolation. A Segment has to say so before it runs."""
        self.alone, self._alone_has_shown = self.next_alone, False

    def finish(self, finished: Finished, *, at: int) -> list[str]:
        """A Sequence has come to its end, at the Unix time `at`.

        Returns the Sequences whose end nobody waits for any more: where one Choice fails, its row
        does.
        """
        job_idx, choice_idx = self.running.pop(finished.seq_id)
        job = self.shard.jobs[job_idx]
        ended = self._ended.setdefault(job_idx, {})
        ended[choice_idx] = finished
        num_choices = len(computed_choices(job))
        if finished.error is None and len(ended) < num_choices:
            return []
        del self._ended[job_idx]
        self._results.append(assemble(job_idx, job, ended, at=at))
        self.on_ended(self._results[-1])
        if len(ended) == num_choices:
            return []
        needless = [seq_id for seq_id, place in self.running.items() if place[0] == job_idx]
        for seq_id in needless:
            del self.running[seq_id]
        if needless and self.waiting:
            self.waiting = deque(s for s in self.waiting if s.seq_id in self.running)
        return needless

    def put_back(self, seq_id: str, generated: Generated) -> None:
        """The Engine has given up a Sequence; it goes on from here when there is room."""
        job_idx, choice_idx = self.running[seq_id]
        job = of_choice(self.shard.jobs[job_idx], choice_idx)
        self.waiting.appendleft(Start(seq_id, job, generated))

    def is_due(self, now: float, *, flush_interval_s: float, quiet_interval_s: float) -> bool:
        """Whether it is time for a Segment; sooner when rows have finished."""
        if self.is_storing:
            return False
        if self.alone is not None and (self.alone in self._suspected or not self._alone_has_shown):
            return True
        interval_s = flush_interval_s if self._results else quiet_interval_s
        if not self._num_flushes:
            interval_s = min(interval_s, _FIRST_FLUSH_S)
        return now - self._flushed_at >= interval_s

    def snapshot(
        self,
        generated: Callable[[str], Generated],
        *,
        now: float,
        at: float,
        closed: CloseReason | None = None,
    ) -> Segment:
        """A Segment with all that is new. Also an empty one shows that this Attempt lives.

        `generated` is the Engine's, for Sequences that it has; `at` is Unix time.
        """
        waiting = {start.seq_id: start.resume for start in self.waiting}
        running = {
            place: waiting[seq_id] if seq_id in waiting else generated(seq_id)
            for seq_id, place in self.running.items()
        }
        for job_idx, ended in self._ended.items():
            running |= {(job_idx, choice_idx): end.generated for choice_idx, end in ended.items()}
        self._flushed_at = now
        self._num_flushes += 1
        return self._next_segment(running, at=at, closed=closed)

    def results_only(self, *, at: float) -> Segment | None:
        """What has finished, without asking an Engine that has just failed."""
        return self._next_segment({}, at=at, closed=None) if self._results else None

    def _next_segment(
        self, running: dict[Place, Generated], *, at: float, closed: CloseReason | None
    ) -> Segment:
        results, self._results = self._results, []
        mark = Mark(at, self._order, closed, self.alone, self._opened_at)
        segment = self._writer.next(results, running, mark)
        self._alone_has_shown |= any(c.job_idx == self.alone for c in segment.checkpoints)
        return segment


def expected_tokens(shard: Shard) -> int:
    """What the rows of a Shard are expected to fill of the KV cache."""
    return sum(
        job.num_prompt_tokens
        + len(job.prompts) * job.params.n * min(job.params.max_tokens, _MAX_EXPECTED_OUTPUT)
        for job in shard.jobs
    )
