"""Celery as what rings: an app with each control task by name, and when beat rings for which.

Whoever can write to the broker can call every task, so there are few, they take ids only, and they
read from the Ledger what there is to do.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from gristmill.control.broker import Broker
from gristmill.control.tasks import (
    DISPATCH,
    ESTIMATE,
    FINALIZE,
    INGEST,
    SWEEP,
    WEBHOOKS,
    ControlTasks,
    Send,
)
from gristmill.errors import QueueError, UsageError

log = logging.getLogger(__name__)

#: What every control process listens on, and what those listen on that read input files.
CONTROL_QUEUE, INGEST_QUEUE = "control", "ingest"
#: Apart, since who sends to receivers may have to sit behind a wall of its own.
WEBHOOKS_QUEUE = "webhooks"
#: How often beat rings, in seconds: all that a lost message can cost.
_EVERY_S = {DISPATCH: 1.0, SWEEP: 2.0, WEBHOOKS: 2.0}
_REACH_S = 5.0


def make_app(broker: Broker, *, rings_webhooks: bool = True) -> Celery:
    """An app without tasks. Raises UsageError when the environment names another broker.

    Not `rings_webhooks`: other processes look by themselves whether there are any to send.
    """
    app = Celery("gristmill", set_as_current=False)
    app.conf.update(
        broker_url=broker.url,
        broker_transport_options=dict(broker.transport_options),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # an outage is waited out, however long
        task_serializer="json",
        accept_content=["json"],
        result_backend=None,
        result_expires=None,
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        # These three are of use with a pool of processes only; slices end by themselves.
        task_time_limit=120,
        task_soft_time_limit=90,
        worker_soft_shutdown_timeout=20,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        task_create_missing_queues=False,
        task_default_queue=CONTROL_QUEUE,
        task_queues=[Queue(CONTROL_QUEUE), Queue(INGEST_QUEUE), Queue(WEBHOOKS_QUEUE)],
        task_routes={
            INGEST: {"queue": INGEST_QUEUE},
            ESTIMATE: {"queue": INGEST_QUEUE},
            WEBHOOKS: {"queue": WEBHOOKS_QUEUE},
        },
        beat_schedule={
            name: {"task": name, "schedule": every_s}
            for name, every_s in _EVERY_S.items()
            if name != WEBHOOKS or rings_webhooks
        },
    )
    if {app.conf.broker_read_url, app.conf.broker_write_url} != {broker.url}:
        raise UsageError(
            "A variable CELERY_BROKER_… of the environment names another broker than --broker "
            f"{broker.shown}. Unset it."
        )
    return app


def add_tasks(app: Celery, tasks: ControlTasks) -> None:
    """The tasks of an app are these, and none of Celery's own."""
    for name, method in (
        (DISPATCH, tasks.dispatch),
        (SWEEP, tasks.sweep),
        (INGEST, tasks.ingest),
        (ESTIMATE, tasks.estimate),
        (FINALIZE, tasks.finalize),
        (WEBHOOKS, tasks.webhooks),
    ):
        # Untyped, since Celery counts `self` among the arguments of a method.
        app.task(method, name=name, typing=False)
    app.finalize()
    for name in [name for name in app.tasks if name.startswith("celery.")]:
        app.tasks.unregister(name)


def sender(app: Celery) -> Send:
    """Rings through the broker of an app."""
    errors = _errors_of(app)

    def send(task: str, *ids: str) -> None:
        if task == WEBHOOKS and task not in app.conf.beat_schedule:
            return
        try:
            app.send_task(task, args=ids)
        except errors as error:
            log.warning("task not rung for task=%s reason=%s", task, error)

    return send


def _errors_of(app: Celery) -> tuple[type[Exception], ...]:
    """What the broker of an app says by when it is away, or has enough just now."""
    if not app.conf.broker_url.startswith("sqs:"):
        return (OperationalError,)
    # Kombu lets what SQS answers through as it is: throttled, denied, no such queue.
    from botocore.exceptions import ClientError
    from kombu.transport.SQS import AccessDeniedQueueException, UndefinedQueueException

    return OperationalError, ClientError, AccessDeniedQueueException, UndefinedQueueException


def reach(app: Celery, broker: Broker) -> None:
    """Raises QueueError when the broker does not answer at all, or not to us."""
    with app.connection_for_write() as connection:
        try:
            _ensure(connection)
        except _errors_of(app) as error:
            raise QueueError(
                f"The broker {broker.shown} cannot be reached: {error}. See that it runs, that "
                "its address is right, and that the credentials are."
            ) from error


def _ensure(connection: Any) -> None:
    connection.ensure_connection(max_retries=1, interval_start=0, timeout=_REACH_S)
