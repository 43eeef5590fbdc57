"""What `gristmill watch` tells of the workers: for keys that may see them, now and then."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gristmill.adapters import name_of
from gristmill.client.errors import APIStatusError, NotFoundError, PermissionDeniedError
from gristmill.values import counted

if TYPE_CHECKING:
    from gristmill.client import Client
    from gristmill.client.workers import Worker

#: They tell of themselves no more often.
LOOK_EVERY_S = 10.0


class FleetSight:
    """Asks the service every ten seconds, and never again when the key may not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at = clock()
        self._told = ""
        self._may_ask = True

    def told(self, client: Client, models: Iterable[str]) -> str:
        """One line about the workers of these models; empty where nothing is known."""
        if not self._may_ask or self._clock() < self._next_at:
            return self._told
        self._next_at = self._clock() + LOOK_EVERY_S
        wanted = set(models)
        try:
            found = list(client.workers.list(limit=1000))
        except (PermissionDeniedError, NotFoundError):  # or the service is older than that
            self._may_ask, self._told = False, ""
        except APIStatusError:
            pass  # what was told last is better than an end of the view
        else:
            self._told = _line([one for one in found if not wanted or wanted & _served(one)])
        return self._told


def _served(worker: Worker) -> set[str]:
    """What lines may call what it runs: its model, and its adapters."""
    return {worker.model, *map(name_of, worker.adapters)}


def _line(workers: list[Worker]) -> str:
    if not workers:
        return "none is known"
    states = Counter(one.state for one in workers)
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    speed = sum(one.tokens_per_second for one in workers if one.state != "lost")
    rows = sum(one.rows for one in workers if one.state != "lost")
    return f"{told}; {counted(rows, 'row')} in work, {speed:,.1f} tokens/s"
