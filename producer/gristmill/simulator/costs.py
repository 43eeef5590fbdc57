"""What ledger, queue and store cost: measured figures that a simulation charges.

Source: `make bench ONLY=fleet_costs` (tests/bench/fleet_costs.py), on two cores that others used as
well, so rather too much than too little. The ledger is SQLite on a local disk, the queue Redis 6 on
the same machine, the store a local folder. What it prints on yours goes into a scenario's `costs`.
"""

from __future__ import annotations

from dataclasses import dataclass

#: As in control/accept.py: Segments that one round accepts at most.
MAX_SEGMENTS = 64


@dataclass(frozen=True, slots=True)
class Costs:
    """All in seconds. The control side pays the first six with its own time, one after the other;
    the others pass while a Worker waits."""

    #: Reading, checking and tokenising one row, until it lies in a Shard.
    ingest_row_s: float = 380e-6
    #: A round of dispatch that looks and sends nothing, and what each Shard sent adds.
    dispatch_round_s: float = 6.6e-3
    dispatch_shard_s: float = 0.41e-3
    #: A round that accepts Segments, up to MAX_SEGMENTS; each Segment, and each row in it.
    accept_round_s: float = 5.6e-3
    accept_segment_s: float = 1.1e-3
    accept_row_s: float = 12e-6
    #: From a send until a Worker that waits has the message.
    wake_s: float = 0.77e-3
    #: Receive, and read the Shard from the store.
    fetch_s: float = 9e-3
    #: List what earlier Attempts left, and store the open mark.
    open_s: float = 8e-3
    #: Store the last Segment of a Shard.
    close_s: float = 13e-3
    #: Per turn of a Worker's loop, beside the step itself.
    turn_s: float = 46e-6
    #: Between two looks at the Lanes of a control side that hears no Bell.
    look_every_s: float = 0.2
    #: Between two looks at empty Lanes of a Worker that has work.
    poll_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Timing:
    """Settings that a simulation follows; the defaults are those of settings.py."""

    lease_s: float = 60.0
    flush_interval_s: float = 5.0
    dispatch_window_shards: int = 4
    shard_max_jobs: int = 256
    shard_max_tokens: int = 60_000
