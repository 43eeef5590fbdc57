"""When a delivery is tried again, and when an endpoint is left alone: decisions, nothing else.

The schedule is that of Standard Webhooks 1.0.0, three days long.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gristmill.ledger.deliveries import Delivery
from gristmill.ledger.webhooks import WebhookEndpoint

_MINUTE_S, _HOUR_S = 60, 3600
#: Seconds from one failure to the next attempt: ten attempts within 75 h 35 min.
SCHEDULE_S = (
    *(5, 5 * _MINUTE_S, 30 * _MINUTE_S),
    *(2 * _HOUR_S, 5 * _HOUR_S, 10 * _HOUR_S, 14 * _HOUR_S, 20 * _HOUR_S, 24 * _HOUR_S),
)
#: Nothing is given up before.
TRIED_FOR_S = 72 * _HOUR_S
#: So much earlier or later, so that what failed together does not come back together.
JITTER = 0.2

#: So many failures in a row open the circuit. Then one attempt at a time, ever more rarely, finds
#: out whether the receiver is back; it is for all that waits.
CIRCUIT_FAILURES = 5
_FIRST_PAUSE_S, _LAST_PAUSE_S = _MINUTE_S, _HOUR_S
#: Failures that were over so long ago say nothing about now.
_FORGOTTEN_AFTER_S = 24 * _HOUR_S
#: The receiver asks for slower sending.
_SLOW_DOWN = (429, 502, 504)
_MAX_RETRY_AFTER_S = 24 * _HOUR_S

#: An endpoint that has failed for so long, and so often in a row, is disabled.
DISABLED_AFTER_S, DISABLED_AFTER_FAILURES = 5 * 24 * _HOUR_S, 20
GONE = 410


@dataclass(frozen=True, slots=True)
class AfterFailure:
    """What follows from a failed attempt. Times are Unix seconds."""

    #: None: that was the last attempt.
    next_attempt_at: int | None
    #: Failures of the endpoint in a row, and since when.
    num_failures: int
    failing_since: int
    #: Nothing is sent to the endpoint before; None: the circuit stays closed.
    circuit_open_until: int | None
    #: Why the endpoint is disabled; None: it is not.
    disabled_reason: str | None


def after_failure(
    delivery: Delivery,
    endpoint: WebhookEndpoint,
    *,
    now: int,
    status_code: int | None = None,
    retry_after_s: float | None = None,
) -> AfterFailure:
    """`delivery` and `endpoint` are as they were before this failure."""
    num_failures, failing_since = endpoint.num_failures + 1, endpoint.failing_since
    was_over_at = endpoint.retry_at or failing_since or now
    if failing_since is None or now - was_over_at > _FORGOTTEN_AFTER_S:
        num_failures, failing_since = 1, now
    is_open = num_failures >= CIRCUIT_FAILURES
    pause_s = 0
    if is_open:
        pause_s = min(_FIRST_PAUSE_S << min(num_failures - CIRCUIT_FAILURES, 10), _LAST_PAUSE_S)
    elif status_code in _SLOW_DOWN:
        pause_s = _FIRST_PAUSE_S
    if retry_after_s is not None:
        pause_s = max(pause_s, min(int(retry_after_s), _MAX_RETRY_AFTER_S))
    next_attempt_at = _next_attempt_at(delivery, now)
    if next_attempt_at is not None:
        next_attempt_at = now + pause_s if is_open else max(next_attempt_at, now + pause_s)
    return AfterFailure(
        next_attempt_at,
        num_failures,
        failing_since,
        now + pause_s if pause_s else None,
        _disabled_reason(num_failures, now - failing_since, status_code),
    )


def _next_attempt_at(delivery: Delivery, now: int) -> int | None:
    """By the schedule alone."""
    num_failures = delivery.num_failures + 1
    is_over = num_failures > len(SCHEDULE_S)
    if is_over and now - delivery.started_at >= TRIED_FOR_S:
        return None
    delay_s = SCHEDULE_S[min(num_failures, len(SCHEDULE_S)) - 1]
    digest = hashlib.sha256(f"{delivery.id}\0{num_failures}".encode()).digest()
    share = int.from_bytes(digest[:4]) / (1 << 32)
    return now + max(1, round(delay_s * (1 - JITTER + 2 * JITTER * share)))


def _disabled_reason(num_failures: int, failing_for_s: int, status_code: int | None) -> str | None:
    if status_code == GONE:
        return "The receiver answered 410 Gone."
    if num_failures >= DISABLED_AFTER_FAILURES and failing_for_s >= DISABLED_AFTER_S:
        days = DISABLED_AFTER_S // (24 * _HOUR_S)
        return f"Nothing arrived for {days} days, and {num_failures} attempts failed in a row."
    return None
