"""Delivers what webhooks tell: `deliver_due` sends what is due, a slow receiver holds nobody up.

Any number of threads and processes may do so at once. Every attempt of an event has the same id
and the same body; when a process dies between sending and noting it, the event is sent again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from sqlalchemy import Connection

from gristmill.control.base import Control
from gristmill.control.observed import span_of, timed
from gristmill.control.webhook_addresses import AddressPolicy
from gristmill.control.webhook_schedule import CIRCUIT_FAILURES, after_failure
from gristmill.control.webhook_sender import ATTEMPT_S, Answer, WebhookSender
from gristmill.control.webhook_signing import signed_headers
from gristmill.control.webhook_vault import SecretUnreadable
from gristmill.errors import GristmillError
from gristmill.ledger import batches, deliveries, webhook_events, webhooks
from gristmill.ledger.deliveries import Attempt, Delivery
from gristmill.ledger.webhook_events import WebhookEvent
from gristmill.ledger.webhooks import WebhookEndpoint
from gristmill.telemetry import Span
from gristmill.telemetry.traces import NO_SPAN

log = logging.getLogger(__name__)

#: No call takes longer; the last attempt begins so early that it ends in time.
SLICE_S = 30.0
#: Attempts at once; one at a time for each endpoint, and not all of them for one tenant.
_MAX_THREADS, _MAX_OF_TENANT = 12, 8
#: Longer than any attempt takes. Who has not noted the outcome by then is believed dead.
_CLAIM_S = 60
#: While some are being sent, it is looked so often whether more are due.
_LOOK_EVERY_S = 0.5
#: When it is looked again whether the key of a secret is there.
_UNREADABLE_S = 300


@timed("webhooks")
def deliver_due(
    control: Control,
    *,
    sender: WebhookSender | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Send what is due, for at most half a minute; how many attempts were made.

    Idempotent, and harmless beside others. Raises StoreError when the Ledger cannot be used.
    """
    sender = sender or WebhookSender(AddressPolicy.of(control.settings))
    last_begin = monotonic() + SLICE_S - ATTEMPT_S - 2 * _LOOK_EVERY_S
    num_attempts = 0
    running: dict[Future[int], Delivery] = {}
    with ThreadPoolExecutor(_MAX_THREADS, "webhook") as pool:
        while True:
            while len(running) < _MAX_THREADS and monotonic() < last_begin and not should_stop():
                due = _next_due(control, running.values())
                if due is None:
                    break
                running[pool.submit(_deliver, control, sender, due)] = due
            if not running:
                return num_attempts
            done, _ = wait(running, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            for future in done:
                del running[future]
                num_attempts += future.result()


class WebhookLoop:
    """Delivers in a thread of its own, beside dispatch and accept.

    `is_sole`: no other process delivers, so that nothing waits for one that was killed.
    """

    def __init__(
        self, control: Control, *, sender: WebhookSender | None = None, is_sole: bool = False
    ) -> None:
        self._control = control
        self._must_take_up = is_sole
        self._sender = sender or WebhookSender(AddressPolicy.of(control.settings))
        #: Why the last turn failed, for people.
        self.trouble = ""

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; an attempt that is under way is waited for."""
        while not stop.is_set():
            try:
                if self._must_take_up:
                    self._take_up()
                num_attempts = deliver_due(
                    self._control, sender=self._sender, should_stop=stop.is_set
                )
                self.trouble = ""
            except GristmillError as error:
                num_attempts = 0
                if str(error) != self.trouble:
                    log.warning("webhooks wait reason=%s", error)
                self.trouble = str(error)
            if not num_attempts:
                stop.wait(_LOOK_EVERY_S)

    def _take_up(self) -> None:
        """Once: what an earlier process was sending."""
        with self._control.ledger.write() as conn:
            deliveries.forget_claims(conn)
        self._must_take_up = False


def _next_due(control: Control, running: Collection[Delivery]) -> Delivery | None:
    num_of = Counter(delivery.tenant_id for delivery in running)
    with control.ledger.read() as conn:
        return deliveries.next_due(
            conn,
            now=control.now,
            busy_endpoints=[delivery.endpoint_id for delivery in running],
            busy_tenants=[tenant for tenant, num in num_of.items() if num >= _MAX_OF_TENANT],
        )


def _deliver(control: Control, sender: WebhookSender, delivery: Delivery) -> int:
    """One attempt, unless somebody else makes it; how many were made."""
    try:
        claimed = _claim(control, delivery)
        if claimed is None:
            return 0
        endpoint, event = claimed
        attempted_at = control.now
        secrets = _signing_secrets(control, endpoint, attempted_at)
        if not secrets:
            with control.ledger.write() as conn:
                deliveries.put_aside(conn, delivery, until=attempted_at + _UNREADABLE_S)
            return 0
        headers = signed_headers(event.id, event.body, secrets, now=attempted_at)
        with _span(control, event) as span:
            answer = sender.send(endpoint.url, headers, event.body.encode())
            span.tell(status=answer.status_code or 0, is_delivered=answer.is_success)
        _note(control, delivery, answer, attempted_at=attempted_at)
    except GristmillError:
        raise
    except Exception:  # a fault of ours in one delivery must not keep all others waiting
        log.exception("webhook not sent delivery=%s", delivery.id)
        return 0
    return 1


def _span(control: Control, event: WebhookEvent) -> Span:
    if not control.telemetry.tracer.is_on:
        return NO_SPAN
    with control.ledger.read() as conn:
        batch = batches.get(conn, event.tenant_id, event.batch_id)
    return NO_SPAN if batch is None else span_of(control, batch, "webhook")


def _claim(control: Control, delivery: Delivery) -> tuple[WebhookEndpoint, WebhookEvent] | None:
    now = control.now
    with control.ledger.write() as conn:
        endpoint = webhooks.get(conn, delivery.tenant_id, delivery.endpoint_id)
        event = webhook_events.get(conn, delivery.tenant_id, delivery.event_id)
        if not deliveries.claim(conn, delivery, now=now, until=now + _CLAIM_S):
            return None
        if endpoint is None or event is None or endpoint.disabled_at is not None:
            # It was disabled or deleted in the moment in which this delivery was added.
            n = delivery.num_attempts + 1
            deliveries.put_off(conn, delivery, num_attempts=n, until=None)
            return None
    return endpoint, event


def _signing_secrets(control: Control, endpoint: WebhookEndpoint, now: int) -> list[str]:
    """Those that can be opened. None is a matter of this service, not of the receiver."""
    found = []
    for sealed in endpoint.live_secrets(now):
        try:
            found.append(control.vault.open(sealed))
        except SecretUnreadable as error:
            log.error("webhook not signed endpoint=%s reason=%s", endpoint.id, error)
    return found


def _note(control: Control, delivery: Delivery, answer: Answer, *, attempted_at: int) -> None:
    """Write the attempt down, and what follows from it for the delivery and the endpoint."""
    n, now = delivery.num_attempts + 1, control.now
    attempt = Attempt(
        n=n,
        attempted_at=attempted_at,
        duration_ms=round(1000 * answer.duration_s),
        status_code=answer.status_code,
        error=answer.error,
        response_body=answer.body if answer.status_code is not None else None,
    )
    with control.ledger.write() as conn:
        endpoint = webhooks.get(conn, delivery.tenant_id, delivery.endpoint_id, for_update=True)
        if endpoint is None:
            return
        deliveries.log_attempt(conn, delivery, attempt)
        outcome = "delivered"
        if answer.is_success:
            _note_success(conn, delivery, endpoint, now)
        else:
            is_over = _note_failure(conn, delivery, endpoint, answer, n=n, now=now)
            outcome = "failed" if is_over else "retried"
    control.telemetry.metrics.add("gristmill_webhook_deliveries_total", (outcome,))
    log.info(
        "webhook attempted event=%s endpoint=%s n=%d status=%s error=%s",
        *(delivery.event_id, delivery.endpoint_id, n, answer.status_code, answer.error),
    )


def _note_success(
    conn: Connection, delivery: Delivery, endpoint: WebhookEndpoint, now: int
) -> None:
    deliveries.mark_delivered(conn, delivery, now=now)
    closed = {"num_failures": 0, "failing_since": None, "retry_at": None, "last_success_at": now}
    webhooks.change(conn, endpoint, closed)
    if endpoint.num_failures >= CIRCUIT_FAILURES:
        # What waited for the receiver to come back need not wait for its next turn.
        deliveries.release(conn, endpoint, now=now)


def _note_failure(
    conn: Connection,
    delivery: Delivery,
    endpoint: WebhookEndpoint,
    answer: Answer,
    *,
    n: int,
    now: int,
) -> bool:
    """Whether nobody tries any more."""
    follows = after_failure(
        delivery,
        endpoint,
        now=now,
        status_code=answer.status_code,
        retry_after_s=answer.retry_after_s,
    )
    changed = {"num_failures": follows.num_failures, "failing_since": follows.failing_since}
    deliveries.put_off(conn, delivery, num_attempts=n, until=follows.next_attempt_at)
    if follows.circuit_open_until is not None:
        deliveries.hold_back(conn, endpoint, until=follows.circuit_open_until)
        changed["retry_at"] = follows.circuit_open_until
    if follows.disabled_reason is not None:
        deliveries.give_up(conn, endpoint)
        disabled = {"disabled_at": now, "disabled_reason": follows.disabled_reason}
        webhooks.change(conn, endpoint, disabled)
        log.warning(
            "webhook endpoint disabled tenant=%s endpoint=%s reason=%s",
            *(endpoint.tenant_id, endpoint.id, follows.disabled_reason),
        )
    webhooks.change(conn, endpoint, changed)
    return follows.next_attempt_at is None or follows.disabled_reason is not None
