"""Whether a call is tried again, and when: the schedule of the openai package. Pure functions."""

from __future__ import annotations

import email.utils
import math
import random
import time
from collections.abc import Callable, Mapping

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 8.0
#: A service that asks for more patience than this is not asked again.
MAX_RETRY_AFTER_S = 120.0
#: Statuses after which it is sure that the service has done nothing.
NOTHING_DONE = frozenset({429})


def should_retry(status: int, headers: Mapping[str, str], *, now: float | None = None) -> bool:
    """Timeouts, conflicts, limits and faults, unless the service says otherwise."""
    asked = retry_after_s(headers, now=now)
    if asked is not None and asked > MAX_RETRY_AFTER_S:
        return False
    said = headers.get("x-should-retry")
    if said in ("true", "false"):
        return said == "true"
    return status in (408, 409, 429) or status >= 500


def delay_s(
    num_tries: int,
    headers: Mapping[str, str] | None = None,
    *,
    now: float | None = None,
    noise: Callable[[], float] = random.random,
) -> float:
    """Seconds until the next try, after `num_tries` (from 1) have failed.

    What the service asks for, else 0.5 s that double up to 8 s, less up to a quarter.
    """
    asked = retry_after_s(headers or {}, now=now)
    if asked is not None and 0 < asked <= MAX_RETRY_AFTER_S:
        return asked
    return min(FIRST_DELAY_S * 2.0 ** min(num_tries - 1, 10), MAX_DELAY_S) * (1 - 0.25 * noise())


def retry_after_s(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds of `retry-after-ms` or `retry-after`, which may also be a date; else None."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
        if not math.isnan(seconds):
            return seconds
    try:
        moment = email.utils.parsedate_to_datetime(headers["retry-after"])
    except (KeyError, ValueError, TypeError):
        return None
    return moment.timestamp() - (time.time() if now is None else now)
