"""What a Worker has on its hands: Shards read ahead, and what the engine loop has taken over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gristmill.queues.base import Lease
from gristmill.types import Shard, ShardPointer
from gristmill_worker.attempt import expected_tokens


@dataclass(frozen=True, slots=True)
class Fetched:
    """A Shard under a Lease that no Attempt has opened yet."""

    lease: Lease
    pointer: ShardPointer
    shard: Shard


@dataclass(slots=True)
class Load:
    """What the engine loop has taken over, as it last said."""

    num_attempts: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    is_isolated: bool = False

    def room_rows(self, max_rows: int, ahead: Collection[Fetched]) -> int:
        """How many more may be fetched where `max_rows` run at once: as many again wait."""
        return 2 * max_rows - self.num_rows - sum(len(f.shard.jobs) for f in ahead)

    def room_tokens(self, max_tokens: int | None, ahead: Collection[Fetched]) -> int | None:
        """The same for tokens of the KV cache; None: any number."""
        if max_tokens is None:
            return None
        fetched = sum(expected_tokens(f.shard) for f in ahead)
        return max(2 * max_tokens - self.num_tokens - fetched, 0)
