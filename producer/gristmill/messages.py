"""What a queue carries: pointers to Shards on their way out, Bells on their way back. No data."""

from __future__ import annotations

from dataclasses import dataclass

#: The lane on which Bells travel from workers to the control side.
CONTROL_LANE = "control"


@dataclass(frozen=True, slots=True)
class ShardPointer:
    """Where a Shard lies and how large it is, and on which Lane its sender hears of it.

    `traceparent` is what a trace of it hangs on (W3C Trace Context), empty where nobody traces.
    A worker that takes no rows of `row_tokens` gives it back; 0 where nobody knows.
    """

    tenant_id: str
    batch_id: str
    run_id: str
    n: int
    num_jobs: int
    num_prompt_tokens: int
    control_lane: str = CONTROL_LANE
    traceparent: str = ""
    row_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Bell:
    """Worker to control: this Attempt has stored its Segment number `seq`. May be lost.

    `damaged` tells of a Shard whose document cannot be read instead; then there is no Segment.
    """

    tenant_id: str
    batch_id: str
    run_id: str
    shard_n: int
    attempt_id: str
    seq: int
    damaged: bool = False
