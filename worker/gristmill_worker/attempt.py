"""One Worker's try at one Shard: what runs, what has finished and is not stored yet."""

from __future__ import annotations

import secrets

from gristmill.queues.base import Lease
from gristmill.types import Choice, RowResult, Shard
from gristmill_worker.engine.base import Engine, Finished
from gristmill_worker.segments import SegmentWriter


class Attempt:
    """Holds no clock: its methods are told the time, in seconds."""

    def __init__(
        self, attempt_id: str, shard: Shard, lease: Lease, writer: SegmentWriter, *, now: float
    ) -> None:
        self.id = attempt_id
        self.shard = shard
        self.lease = lease
        #: Jobs that the Engine works on, by the id of their Sequence.
        self.running: dict[str, int] = {}
        self._writer = writer
        self._results: list[RowResult] = []
        self._flushed_at = now

    @property
    def is_done(self) -> bool:
        """Whether no Job is left to run. The last results may still have to be stored."""
        return not self.running

    def start(self, job_idx: int) -> str:
        """The id of the Sequence for a Job."""
        seq_id = f"{self.id}/{job_idx}"
        self.running[seq_id] = job_idx
        return seq_id

    def finish(self, finished: Finished, *, at: int) -> None:
        """A Sequence has come to its end, at the Unix time `at`."""
        job_idx = self.running.pop(finished.seq_id)
        times_ms = finished.generated.times_ms
        num_gaps = max(len(times_ms) - 1, 1)
        self._results.append(
            RowResult(
                job_idx=job_idx,
                rows=self.shard.jobs[job_idx].rows,
                usage=finished.usage,
                choices=() if finished.error else (_choice(finished),),
                error=finished.error,
                finished_at=at,
                ttft_s=times_ms[0] / 1000 if times_ms else 0.0,
                itl_s=(times_ms[-1] - times_ms[0]) / 1000 / num_gaps if times_ms else 0.0,
            )
        )

    def is_due(self, now: float, *, flush_interval_s: float, quiet_interval_s: float) -> bool:
        """Whether it is time for a Segment; sooner when rows have finished."""
        interval_s = flush_interval_s if self._results else quiet_interval_s
        return now - self._flushed_at >= interval_s

    def flush(self, engine: Engine, *, now: float) -> None:
        """A Segment with all that is new. Also an empty one shows that this Attempt lives."""
        running = {job_idx: engine.generated(seq_id) for seq_id, job_idx in self.running.items()}
        self._writer.write(self._results, running)
        self._results = []
        self._flushed_at = now

    def flush_results(self) -> None:
        """Save what has finished, without asking an Engine that has just failed."""
        if self._results:
            self._writer.write(self._results, {})
            self._results = []


def _choice(finished: Finished) -> Choice:
    assert finished.finish_reason is not None, "an answer says why it ended"
    return Choice(
        tuple(finished.generated.token_ids),
        finished.text,
        finished.finish_reason,
        tuple(finished.generated.logprobs),
        tuple(finished.text_offsets),
        finished.token_bytes,
    )


def new_attempt_id() -> str:
    """Random: a queue's own counts restart, repeat and go down."""
    return f"att-{secrets.token_hex(8)}"
