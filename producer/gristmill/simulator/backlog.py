"""What the Ledger would know in a simulation: batches, what waits of them, what is out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping

from gristmill.control.fair_share import Demand, is_hopeless
from gristmill.simulator.pace import Pace
from gristmill.simulator.shards import SimShard
from gristmill.simulator.work import BatchSpec

#: So many Shards of a batch are cut before they are wanted, while some class has few.
_MAX_AHEAD = 256


class SimBatch:
    """One batch in progress. Shards are cut when they are wanted, some of each class ahead."""

    def __init__(self, spec: BatchSpec, windows: Iterator[list[SimShard]]) -> None:
        """`windows` are its Shards, as `shards.cut` makes them."""
        self.spec = spec
        self._windows = windows
        #: By class, the Shards that wait, those that came back in front.
        self.waiting: dict[object, deque[SimShard]] = {}
        #: Expected tokens of these.
        self._waiting_tokens: Counter[object] = Counter()
        self.num_waiting = 0
        self.num_rows_left = spec.num_rows
        self.is_all_cut = False
        self._num_rows_cut, self._tokens_cut = 0, 0
        #: Expected tokens of Shards that are done or out.
        self.tokens_sent = 0
        self.cut_ahead(1)

    @property
    def expected_tokens(self) -> float:
        """Of the whole batch, from what was cut so far."""
        return self._tokens_cut / max(self._num_rows_cut, 1) * self.spec.num_rows

    @property
    def tokens_waiting(self) -> float:
        return max(self.expected_tokens - self.tokens_sent, 0.0)

    @property
    def tokens_left(self) -> float:
        """Expected, of rows without a result."""
        return self.expected_tokens * self.num_rows_left / self.spec.num_rows

    def cut_ahead(self, num_shards: int) -> None:
        """Until so many Shards wait of each class that was seen, or many of all together."""
        while not self.is_all_cut and self.num_waiting < max(_MAX_AHEAD, num_shards):
            if self.waiting and min(map(len, self.waiting.values())) >= num_shards:
                return
            window = next(self._windows, None)
            if window is None:
                self.is_all_cut = True
                return
            for shard in window:
                self._num_rows_cut += shard.num_jobs
                self._tokens_cut += shard.expected_tokens
                self.waiting.setdefault(shard.size_class, deque()).append(shard)
                self._count_waiting(shard, 1)

    def heads(self) -> Iterator[SimShard]:
        """The next Shard of each class, in the order in which they were cut."""
        yield from sorted((shards[0] for shards in self.waiting.values() if shards), key=_number)

    def take(self, shard: SimShard) -> None:
        """It is sent: one of the heads."""
        taken = self.waiting[shard.size_class].popleft()
        assert taken is shard, "only the first of a class is sent"
        self._count_waiting(shard, -1)
        self.tokens_sent += shard.expected_tokens

    def put_back(self, shard: SimShard) -> None:
        """It was recalled."""
        self.waiting.setdefault(shard.size_class, deque()).appendleft(shard)
        self._count_waiting(shard, 1)
        self.tokens_sent -= shard.expected_tokens

    def kinds(self) -> Iterator[tuple[SimShard, float]]:
        """The next Shard of each class, and the expected tokens of all that wait of it: of what was
        not cut yet as much as of what was."""
        more = self.tokens_waiting / max(self._waiting_tokens.total(), 1)
        for size_class, shards in self.waiting.items():
            if shards:
                yield shards[0], self._waiting_tokens[size_class] * more

    def _count_waiting(self, shard: SimShard, num: int) -> None:
        self.num_waiting += num
        self._waiting_tokens[shard.size_class] += num * shard.expected_tokens


def _number(shard: SimShard) -> int:
    return shard.n


class Backlog:
    """All batches in progress, and what is out with workers: what dispatch asks the Ledger."""

    def __init__(self, *, max_shard_tokens: int) -> None:
        self.max_shard_tokens = max_shard_tokens
        self.pace = Pace()
        #: Expected tokens that were sent and are not answered yet, by Lane.
        self.sent_tokens: dict[str, float] = {}
        self._batches: dict[str, SimBatch] = {}
        self._under_way: dict[str, float] = {}
        #: By tenant, tokens that were finished for it.
        self._finished: dict[str, float] = {}

    def add(self, batch: SimBatch) -> None:
        """It has been read and is in progress."""
        self._batches[batch.spec.id] = batch

    def find(self, batch_id: str) -> SimBatch:
        return self._batches[batch_id]

    def cut_ahead(self, num_shards: int) -> None:
        """As ingest has long done it."""
        for batch in self._batches.values():
            batch.cut_ahead(num_shards)

    @property
    def num_batches(self) -> int:
        return len(self._batches)

    @property
    def waiting_tokens(self) -> float:
        """Expected, of all that was not sent."""
        return sum(batch.tokens_waiting for batch in self._batches.values())

    def waiting(self) -> Iterator[SimBatch]:
        """Batches with Shards waiting, in the order of their arrival."""
        return (batch for batch in self._batches.values() if batch.num_waiting)

    def waiting_of(self, tenant_id: str) -> Iterator[SimBatch]:
        """Those of a tenant, the one whose turn it is in front."""
        of_tenant = [one for one in self.waiting() if one.spec.tenant_id == tenant_id]
        return iter(sorted(of_tenant, key=lambda one: (one.spec.due_at, one.spec.arrives_at)))

    def due_until(self, until: float, now: float, tokens_per_s: float) -> Iterator[SimBatch]:
        """Those that are due by then and not hopeless, the earliest in front."""
        due = [one for one in self.waiting() if now < one.spec.due_at <= until]
        for batch in sorted(due, key=lambda one: one.spec.due_at):
            demand = Demand(batch.spec.due_at, batch.tokens_left)
            if not is_hopeless(demand, now=now, tokens_per_s=tokens_per_s):
                yield batch

    def demands(self) -> list[Demand]:
        """Of batches with a deadline."""
        return [
            Demand(batch.spec.due_at, batch.tokens_left)
            for batch in self._batches.values()
            if batch.spec.due_in_s is not None
        ]

    def tenants_waiting(self) -> dict[str, int | None]:
        """With the tokens finished for each; None for one that is new."""
        tenants = {batch.spec.tenant_id for batch in self.waiting()}
        known = self._finished
        return {t: int(known[t]) if t in known else None for t in sorted(tenants)}

    def under_way(self) -> dict[str, int]:
        return {tenant_id: int(tokens) for tenant_id, tokens in self._under_way.items()}

    def move_shares(self, moved: Mapping[str, int]) -> None:
        for tenant_id, num_tokens in moved.items():
            self._finished[tenant_id] = self._finished.get(tenant_id, 0) + num_tokens

    def take(self, batch: SimBatch, shard: SimShard, lane: str) -> SimShard:
        """Sent to a Lane."""
        batch.take(shard)
        shard.lane = lane
        self._count(shard, shard.tokens_left)
        return shard

    def put_back(self, shard: SimShard) -> None:
        """Recalled from its Lane."""
        self._count(shard, -shard.tokens_left)
        shard.lane = ""
        self._batches[shard.batch.id].put_back(shard)

    def row_finished(self, shard: SimShard) -> None:
        before = shard.tokens_left
        shard.num_done += 1
        self._count(shard, shard.tokens_left - before)

    def rows_lost(self, shard: SimShard) -> None:
        """Rows had finished, and their worker died before it stored them."""
        before = shard.tokens_left
        shard.num_done = shard.num_jobs - shard.num_left
        self._count(shard, shard.tokens_left - before)

    def rows_stored(self, shard: SimShard, num_rows: int, num_tokens: int) -> bool:
        """Their results count; whether the batch has come to its end with that."""
        batch = self._batches[shard.batch.id]
        tenant_id = shard.batch.tenant_id
        self._finished[tenant_id] = self._finished.get(tenant_id, 0) + num_tokens
        batch.num_rows_left -= num_rows
        if batch.num_rows_left == 0:
            del self._batches[shard.batch.id]
        return batch.num_rows_left == 0

    def _count(self, shard: SimShard, num_tokens: int) -> None:
        tenant_id, lane = shard.batch.tenant_id, shard.lane
        self._under_way[tenant_id] = self._under_way.get(tenant_id, 0) + num_tokens
        self.sent_tokens[lane] = self.sent_tokens.get(lane, 0) + num_tokens
