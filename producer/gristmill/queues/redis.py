"""A Queue on Redis Streams: one stream and one consumer group for each Lane.

What must happen at once happens in scripts on the server, by the server's clock; how Leases are
kept stands in `redis_scripts/common.lua`. Works on Redis 6.2 and newer, and on Valkey. The keys are
`{PREFIX}:LANE:messages` (the stream), `…:ids` (message ids of it) and `…:dead`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import islice
from typing import Any, NamedTuple
from uuid import uuid4

from redis.exceptions import ResponseError

from gristmill.queues.base import (
    MAX_DELAY_S,
    LaneStats,
    Lease,
    Room,
    as_lanes,
    check_body,
    check_lane,
)
from gristmill.queues.redis_server import RedisServer, parse_redis_url

log = logging.getLogger(__name__)

GROUP = "gristmill"
_SCRIPTS = ("send", "take", "renew", "ack", "release", "dead_letter", "stats", "repair")
#: A script keeps all other clients waiting, so no call hands it more than so many.
_MAX_LEASES_PER_CALL = 200
#: Dead letters that are kept, the newest.
_MAX_DEAD = 10_000
#: How long one look for a message blocks; what comes back in time wakes nobody.
_MAX_BLOCK_S = 1.0
_REPAIR_INTERVAL_S = 300.0
_SILENT_CONSUMER_MS = 3_600_000
_ANY_NUMBER = 2**53


class _Place(NamedTuple):
    """What the id of a Lease says: which entry of which Lane, given out for which time."""

    lane: str
    entry: bytes
    deliveries: int

    @classmethod
    def of(cls, lease: Lease) -> _Place:
        lane, entry, deliveries = lease.id.split("/")
        return cls(lane, entry.encode(), int(deliveries))

    @property
    def lease_id(self) -> str:
        return f"{self.lane}/{self.entry.decode()}/{self.deliveries}"


class RedisQueue:
    """One client. A server that is away is a QueueError, and the next call tries it again.

    After a restart or a FLUSHALL the first `receive` on a Lane makes its group anew.
    """

    def __init__(
        self,
        server: RedisServer,
        lease_s: float,
        *,
        prefix: str = "gristmill",
        repair_interval_s: float = _REPAIR_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._lease_s = lease_s
        self._prefix = prefix
        self._repair_interval_s = repair_interval_s
        self._clock = clock
        self._repair_at: dict[str, float] = {}
        self._lease_ms = max(1, round(lease_s * 1000))
        #: Never used twice, or a process could take its forerunner's Leases for its own.
        self._me = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:12]}:{self._lease_ms}"
        folder = files("gristmill.queues") / "redis_scripts"
        common = (folder / "common.lua").read_text("utf-8")
        self._scripts = {
            name: server.client.register_script(
                common + (folder / f"{name}.lua").read_text("utf-8")
            )
            for name in _SCRIPTS
        }

    @property
    def lease_s(self) -> float:
        return self._lease_s

    def send(
        self,
        lane: str,
        body: bytes,
        *,
        message_id: str | None = None,
        num_rows: int = 1,
        num_tokens: int = 0,
        tenant_id: str = "",
        makes_lane: bool = True,
    ) -> None:
        check_lane(lane)
        check_body(body)
        keys = self._keys(lane, "messages", "ids")
        sizes = (num_rows, num_tokens)
        self._run("send", keys, GROUP, body, message_id or "", *sizes, int(makes_lane))

    def receive(
        self,
        lanes: str | Sequence[str],
        max_messages: int,
        wait_s: float,
        *,
        max_rows: int | None = None,
        max_tokens: int | None = None,
    ) -> list[Lease]:
        names = as_lanes(lanes)
        room = Room(max_messages, max_rows, max_tokens)
        if room.is_none or not names:
            return []
        give_up_at = self._clock() + wait_s
        while True:
            self._repair_where_due(names)
            leases, last_ids = self._take(names, room)
            remaining = give_up_at - self._clock()
            if leases or remaining <= 0:
                return leases
            self._wait_for_more(names, last_ids, min(remaining, self._lease_s / 4, _MAX_BLOCK_S))

    def renew(self, leases: Iterable[Lease]) -> set[str]:
        owned: set[str] = set()
        for lane, places in _by_lane(leases):
            found = self._run(
                "renew", self._keys(lane, "messages"), GROUP, self._me, *_flat(places)
            )
            owned.update(places[n - 1].lease_id for n in found)
        return owned

    def ack(self, *leases: Lease) -> bool:
        num_removed = sum(
            self._run("ack", self._keys(lane, "messages", "ids"), GROUP, self._me, *_flat(places))
            for lane, places in _by_lane(leases)
        )
        return bool(num_removed == len(leases))

    def release(self, lease: Lease, delay_s: float = 0.0) -> bool:
        place = _Place.of(lease)
        keys = self._keys(place.lane, "messages")
        delay_ms = int(min(max(delay_s, 0.0), MAX_DELAY_S) * 1000)
        return bool(self._run("release", keys, GROUP, self._me, *_flat([place]), delay_ms))

    def dead_letter(self, lease: Lease, reason: str) -> bool:
        place = _Place.of(lease)
        keys = self._keys(place.lane, "messages", "ids", "dead")
        arguments = (*_flat([place]), reason[:1000], _MAX_DEAD)
        return bool(self._run("dead_letter", keys, GROUP, self._me, *arguments))

    def stats(self, lane: str) -> LaneStats:
        check_lane(lane)
        visible, leased, dead, age_ms = self._run(
            "stats", self._keys(lane, "messages", "dead"), GROUP
        )
        return LaneStats(visible, leased, dead, None if age_ms < 0 else age_ms / 1000)

    def remove_lane(self, lane: str) -> None:
        check_lane(lane)
        with self._server.asked_to("remove a lane"):
            self._server.client.unlink(*self._keys(lane, "messages", "ids", "dead"))

    def close(self) -> None:
        self._server.close()

    def repair(self, lane: str) -> int:
        """Let messages wait again that are under no Lease and wait nowhere; how many.

        Nothing of ours leaves such ghosts; deleting a consumer by hand does. `receive` calls this
        now and then.
        """
        keys = self._keys(lane, "messages")
        num_ghosts, num_consumers = self._run("repair", keys, GROUP, _SILENT_CONSUMER_MS)
        if num_ghosts:
            log.warning("messages found again lane=%s num_messages=%d", lane, num_ghosts)
        if num_consumers:
            log.debug("silent consumers forgotten lane=%s num=%d", lane, num_consumers)
        return int(num_ghosts)

    def _repair_where_due(self, lanes: Iterable[str]) -> None:
        for lane in lanes:
            if self._clock() >= self._repair_at.get(lane, float("-inf")):
                self.repair(lane)
                self._repair_at[lane] = self._clock() + self._repair_interval_s

    def _take(self, lanes: Sequence[str], room: Room) -> tuple[list[Lease], list[bytes]]:
        """Leases, or where each stream ended when there was nothing to give."""
        keys = [key for lane in lanes for key in self._keys(lane, "messages")]
        arguments: list[str | int] = [
            GROUP,
            self._me,
            self._lease_ms,
            room.num_messages,
            _ANY_NUMBER if room.num_rows is None else room.num_rows,
            _ANY_NUMBER if room.num_tokens is None else room.num_tokens,
        ]
        with self._server.asked_to("take messages"):
            try:
                taken, last_ids = self._scripts["take"](keys, arguments)
            except ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                # A new server, or one that was emptied.
                for key in keys:
                    self._make_group(key)
                taken, last_ids = self._scripts["take"](keys, arguments)
        leases = []
        for n, entry, deliveries, body in taken:
            place = _Place(lanes[n - 1], entry, deliveries)
            leases.append(Lease(place.lease_id, place.lane, body))
        return leases, last_ids

    def _wait_for_more(
        self, lanes: Sequence[str], last_ids: Sequence[bytes], block_s: float
    ) -> None:
        """Return when a stream grows, or after a while. Takes nothing: `take` alone does that."""
        streams = [key for lane in lanes for key in self._keys(lane, "messages")]
        with self._server.asked_to("wait for a message"):
            self._server.client.xread(
                dict(zip(streams, last_ids, strict=True)),
                count=1,
                block=max(1, int(block_s * 1000)),
            )

    def _run(self, name: str, keys: list[str], *arguments: Any) -> Any:
        """Run a script; when its reply is lost it may be sent again, which harms nothing."""
        with self._server.asked_to(name):
            return self._scripts[name](keys, arguments)

    def _make_group(self, stream: str) -> None:
        """From the beginning of the stream: what was sent before there was a group counts too."""
        try:
            self._server.client.xgroup_create(stream, GROUP, id="0", mkstream=True)
            log.info("group made key=%s", stream)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def _keys(self, lane: str, *kinds: str) -> list[str]:
        return [f"{{{self._prefix}}}:{lane}:{kind}" for kind in kinds]


def _by_lane(leases: Iterable[Lease]) -> Iterator[tuple[str, list[_Place]]]:
    """The Leases of each Lane, no more than one script may have at once."""
    by_lane: dict[str, list[_Place]] = {}
    for lease in leases:
        place = _Place.of(lease)
        by_lane.setdefault(place.lane, []).append(place)
    for lane, places in by_lane.items():
        rest = iter(places)
        while some := list(islice(rest, _MAX_LEASES_PER_CALL)):
            yield lane, some


def _flat(places: Iterable[_Place]) -> list[bytes | int]:
    return [value for place in places for value in (place.entry, place.deliveries)]


def open_url(url: str, lease_s: float) -> RedisQueue:
    """Reach and check the server. Raises UsageError, QueueRefused or another QueueError."""
    parsed = parse_redis_url(url)
    server = RedisServer(parsed)
    server.check()
    return RedisQueue(server, lease_s, prefix=parsed.prefix)
