"""A store, a queue and a ledger that fail, die, stall and let others act in the middle of a call.

What befalls a call is drawn from one seeded source, so that a run can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from fake_engine import Clock
from pipeline import MemoryStore

from gristmill.errors import QueueError, StoreError
from gristmill.queues.memory import MemoryQueue


class Crash(BaseException):
    """The process dies here. Nothing catches it."""


@dataclass
class Fates:
    """`chances` of a call of an actor: that it fails before or after it took effect, kills its
    process before or after, takes long, or that others act meanwhile."""

    rng: random.Random
    clock: Clock
    chances: dict[str, float] = field(default_factory=dict)
    #: Called with the actor in whose call others act.
    meanwhile: Callable[[str], object] = lambda actor: None
    #: Actors that nothing befalls just now.
    spared: set[str] = field(default_factory=set)
    #: When a call of an actor last failed or took long.
    trouble_at: dict[str, float] = field(default_factory=dict)

    def around(self, actor: str, call: Callable[[], Any], error: type[Exception]) -> Any:
        kind = self._draw(actor)
        if kind in ("meanwhile", "stall", "fail", "die"):
            self._befall(actor, kind, error)
        outcome = call()
        if kind in ("meanwhile after", "fail after", "die after"):
            self._befall(actor, kind.removesuffix(" after"), error)
        return outcome

    def _draw(self, actor: str) -> str:
        if actor in self.spared:
            return ""
        drawn = self.rng.random()
        for kind, chance in self.chances.items():
            drawn -= chance
            if drawn < 0:
                return kind
        return ""

    def _befall(self, actor: str, kind: str, error: type[Exception]) -> None:
        if kind == "meanwhile":
            self.meanwhile(actor)
            return
        if kind == "die":
            raise Crash(actor)
        self.trouble_at[actor] = self.clock()
        self.clock.advance(self.rng.choice([1.0, 5.0, 45.0] if kind == "stall" else [0.1, 2.0]))
        self.trouble_at[actor] = self.clock()
        if kind == "fail":
            raise error("A test has made this fail.")


class WholeStore(MemoryStore):
    """A MemoryStore with all that a Store can do."""

    def get(self, key: str, *, start: int = 0, num_bytes: int | None = None) -> bytes:
        body = super().get(key)[start:]
        return body if num_bytes is None else body[:num_bytes]

    def create(self, key: str, body: bytes) -> bool:
        return self.objects.setdefault(key, body) == body

    def size(self, key: str) -> int:
        return len(self.get(key))

    def probe(self) -> None:
        """Nothing can be wrong with it."""


class _Shaky:
    """What one actor sees of `whole`: any call to it may fail, with `error`, or be disturbed."""

    def __init__(self, whole: Any, fates: Fates, actor: str, error: type[Exception]) -> None:
        self._whole = whole
        self._fates = fates
        self._actor = actor
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._do(lambda: getattr(self._whole, name)(*args, **kwargs))

        return call

    def _do(self, call: Callable[[], Any]) -> Any:
        return self._fates.around(self._actor, call, self._error)


class ShakyStore(_Shaky):
    """The store as one actor sees it. Of `damage` Segments, what is written cannot be read."""

    def __init__(self, store: WholeStore, fates: Fates, actor: str, damage: float = 0.0) -> None:
        super().__init__(store, fates, actor, StoreError)
        self._damage = damage

    def put(self, key: str, body: bytes) -> None:
        may_be_hit = self._damage > 0 and "/segments/" in key and "/ingest/" not in key
        if may_be_hit and self._fates.rng.random() < self._damage:
            body = body[: len(body) // 2]
        self._do(lambda: self._whole.put(key, body))

    def list(self, prefix: str) -> Iterator[str]:
        return iter(list(self._do(lambda: list(self._whole.list(prefix)))))


class ShakyQueue(_Shaky):
    """The queue as one actor sees it."""

    def __init__(self, queue: MemoryQueue, fates: Fates, actor: str) -> None:
        super().__init__(queue, fates, actor, QueueError)

    @property
    def lease_s(self) -> float:
        lease_s: float = self._whole.lease_s
        return lease_s

    def renew(self, leases: Iterable[Any]) -> set[str]:
        found: set[str] = self._do(lambda: self._whole.renew(leases))
        return found


class ShakyLedger:
    """The ledger as one actor sees it; `num_writing` is shared: one writes at a time."""

    def __init__(self, ledger: Any, fates: Fates, actor: str, writing: list[str]) -> None:
        self._ledger = ledger
        self._fates = fates
        self._actor = actor
        self._writing = writing

    @contextmanager
    def write(self) -> Iterator[Any]:
        if self._writing:
            raise StoreError("The ledger is locked.")
        self._writing.append(self._actor)
        try:
            with self._ledger.write() as conn:
                yield conn
                if self._fates.rng.random() < 0.1:
                    self._fates.around(self._actor, lambda: None, StoreError)
        finally:
            self._writing.remove(self._actor)
        self._fates.around(self._actor, lambda: None, StoreError)

    def read(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._ledger.read()
        return found

    def close(self) -> None:
        self._ledger.close()
