"""What a Worker has on its hands: Shards read ahead, and what the engine loop has taken over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gristmill.queues.base import Lease
from gristmill.types import Shard, ShardPointer
from gristmill_worker.attempt import expected_tokens

#: Work that lies here is not read ahead for longer than this takes: others could begin with it.
READ_AHEAD_S = 60.0


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
    #: Of those, tokens of rows that do not decode yet.
    num_tokens_ahead: int = 0
    #: What the Engine does of the like of its latest work; None before its first step.
    tokens_per_s: float | None = None
    is_isolated: bool = False

    def room_rows(self, max_rows: int, ahead: Collection[Fetched]) -> int:
        """How many more may be fetched where `max_rows` run at once: as many again wait."""
        return 2 * max_rows - self.num_rows - sum(len(f.shard.jobs) for f in ahead)

    def room_tokens(self, max_tokens: int | None, ahead: Collection[Fetched]) -> int | None:
        """The same for tokens of the KV cache, and no more than what begins within READ_AHEAD_S.

        `max_tokens` None: the cache sets no limit. None: any number. What decodes runs beside what
        comes and does not count as ahead, and when nothing else is here there is room for a Shard
        however long that takes, so that the Engine never waits for one. Before the first step,
        there is room for one Shard beside another.
        """
        fetched = sum(expected_tokens(f.shard) for f in ahead)
        rooms = [] if max_tokens is None else [2 * max_tokens - self.num_tokens - fetched]
        num_ahead = self.num_tokens_ahead + fetched
        if self.tokens_per_s is not None:
            rooms.append(max(int(READ_AHEAD_S * self.tokens_per_s) - num_ahead, num_ahead == 0))
        elif self.num_attempts + len(ahead) > 1:
            rooms.append(0)
        return max(min(rooms), 0) if rooms else None
