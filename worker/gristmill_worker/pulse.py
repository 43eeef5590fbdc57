"""What a beat says of how this Worker is just now. Called in the thread of the beats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gristmill.fleet import WorkerBeat
from gristmill_worker.attempt import Attempt
from gristmill_worker.intake import Intake
from gristmill_worker.lanes import Lanes
from gristmill_worker.rows import EngineRows


def fill(
    beat: WorkerBeat,
    attempts: Iterable[Attempt],
    *,
    lanes: Lanes,
    intake: Intake,
    rows: EngineRows,
    num_lease_losses: int,
) -> WorkerBeat:
    """Reads what other threads write, so that numbers may be a step apart."""
    held, stats, speeds = list(attempts), rows.stats, rows.speeds
    num_waiting = sum(len(attempt.waiting) for attempt in held)
    return replace(
        beat,
        card=replace(
            beat.card,
            lanes=lanes.names,
            prefill_tokens_per_s=speeds.prefill_tokens_per_s,
            decode_tokens_per_s=speeds.decode_tokens_per_s,
            step_time=speeds.step_time,
            busy_tokens_per_s=speeds.busy_tokens_per_s,
        ),
        num_shards=len(held),
        num_shards_ahead=intake.num_ahead,
        num_rows=max(sum(len(attempt.running) for attempt in held) - num_waiting, 0),
        num_waiting=num_waiting,
        kv_used_tokens=rows.kv_used_tokens,
        num_prefill_tokens=stats.num_prefill_tokens,
        num_generated_tokens=stats.num_generated_tokens,
        num_preempted=stats.num_preempted,
        num_lease_losses=num_lease_losses,
    )
