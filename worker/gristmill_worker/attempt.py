"""One Worker's try at one Shard: what runs, what has finished and is not stored yet."""

from __future__ import annotations

import secrets

from gristmill.queues.base import Lease
from gristmill.types import RowResult, Shard
from gristmill_worker.choices import assemble, computed_choices
from gristmill_worker.engine.base import Engine, Finished
from gristmill_worker.segments import Place, SegmentWriter


class Attempt:
    """Holds no clock: its methods are told the time, in seconds."""

    def __init__(
        self, attempt_id: str, shard: Shard, lease: Lease, writer: SegmentWriter, *, now: float
    ) -> None:
        self.id = attempt_id
        self.shard = shard
        self.lease = lease
        #: Choices that the Engine works on, by the id of their Sequence.
        self.running: dict[str, Place] = {}
        #: Choices that have ended, of Jobs of which others still run.
        self._ended: dict[int, dict[int, Finished]] = {}
        self._writer = writer
        self._results: list[RowResult] = []
        self._flushed_at = now

    @property
    def is_done(self) -> bool:
        """Whether no Job is left to run. The last results may still have to be stored."""
        return not self.running

    def start(self, job_idx: int, choice_idx: int) -> str:
        """The id of the Sequence for one Choice of a Job."""
        seq_id = f"{self.id}/{job_idx}/{choice_idx}"
        self.running[seq_id] = (job_idx, choice_idx)
        return seq_id

    def finish(self, finished: Finished, *, at: int) -> list[str]:
        """A Sequence has come to its end, at the Unix time `at`.

        Returns the Sequences whose end nobody waits for any more: where one Choice fails, its row
        does.
        """
        job_idx, choice_idx = self.running.pop(finished.seq_id)
        job = self.shard.jobs[job_idx]
        ended = self._ended.setdefault(job_idx, {})
        ended[choice_idx] = finished
        if finished.error is None and len(ended) < len(computed_choices(job)):
            return []
        del self._ended[job_idx]
        self._results.append(assemble(job_idx, job, ended, at=at))
        needless = [seq_id for seq_id, place in self.running.items() if place[0] == job_idx]
        for seq_id in needless:
            del self.running[seq_id]
        return needless

    def is_due(self, now: float, *, flush_interval_s: float, quiet_interval_s: float) -> bool:
        """Whether it is time for a Segment; sooner when rows have finished."""
        interval_s = flush_interval_s if self._results else quiet_interval_s
        return now - self._flushed_at >= interval_s

    def flush(self, engine: Engine, *, now: float) -> None:
        """A Segment with all that is new. Also an empty one shows that this Attempt lives."""
        running = {place: engine.generated(seq_id) for seq_id, place in self.running.items()}
        for job_idx, ended in self._ended.items():
            running |= {(job_idx, choice_idx): end.generated for choice_idx, end in ended.items()}
        self._writer.write(self._results, running)
        self._results = []
        self._flushed_at = now

    def flush_results(self) -> None:
        """Save what has finished, without asking an Engine that has just failed."""
        if self._results:
            self._writer.write(self._results, {})
            self._results = []


def new_attempt_id() -> str:
    """Random: a queue's own counts restart, repeat and go down."""
    return f"att-{secrets.token_hex(8)}"
