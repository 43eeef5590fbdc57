"""How Celery is set up, what of it can be called from outside, and which brokers are refused."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import patch

import pytest
from botocore.exceptions import ClientError
from celery.beat import Scheduler
from kombu.exceptions import ContentDisallowed, OperationalError
from kombu.serialization import dumps, loads
from ports import free_port

from gristmill.control.broker import Broker, parse_broker_url
from gristmill.control.celery import add_tasks, make_app, reach, sender
from gristmill.control.tasks import ControlTasks
from gristmill.errors import QueueError, UsageError
from gristmill.process.celery import OutageFilter

QUEUE = "redis://127.0.0.1:6379/0"


def broker(url: str = "redis://127.0.0.1:6379/1") -> Broker:
    return parse_broker_url(url, queue_url=QUEUE)


def test_the_settings_are_those_that_keep_tasks_safe() -> None:
    conf = make_app(broker()).conf

    found = {
        name: conf[name]
        for name in (
            *("task_serializer", "accept_content", "result_backend", "task_ignore_result"),
            *("task_acks_late", "task_reject_on_worker_lost", "worker_prefetch_multiplier"),
            *("task_time_limit", "task_soft_time_limit", "worker_soft_shutdown_timeout"),
            *("broker_connection_retry_on_startup", "worker_enable_remote_control"),
            "broker_transport_options",
        )
    }
    assert found == {
        "task_serializer": "json",
        "accept_content": ["json"],
        "result_backend": None,
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "task_time_limit": 120,
        "task_soft_time_limit": 90,
        "worker_soft_shutdown_timeout": 20,
        "broker_connection_retry_on_startup": True,
        "worker_enable_remote_control": False,
        "broker_transport_options": {
            "visibility_timeout": 300,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "global_keyprefix": "cp:",
        },
    }


def test_only_the_control_tasks_can_be_called() -> None:
    app = make_app(broker())
    add_tasks(app, object.__new__(ControlTasks))

    assert set(app.tasks) == {"dispatch", "estimate", "finalize", "ingest", "sweep", "webhooks"}
    assert set(app.conf.beat_schedule) == {"dispatch", "sweep", "webhooks"}


def test_who_leaves_webhooks_to_others_rings_for_none() -> None:
    app = make_app(broker(), rings_webhooks=False)

    with patch.object(app, "send_task") as send_task:
        sender(app)("webhooks")
        sender(app)("dispatch")

    assert set(app.conf.beat_schedule) == {"dispatch", "sweep"}
    assert [call.args[0] for call in send_task.call_args_list] == ["dispatch"]


def test_a_pickled_message_is_refused() -> None:
    conf = make_app(broker()).conf
    content_type, encoding, body = dumps({"args": []}, serializer="pickle")

    with pytest.raises(ContentDisallowed):
        loads(body, content_type, encoding, accept=conf.accept_content)


def test_a_broker_on_sqs_is_named_as_a_queue_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")

    made = broker("sqs://fleet?endpoint=http://127.0.0.1:4100&region=eu-north-1")

    assert made.url == "sqs://127.0.0.1:4100"
    options = dict(made.transport_options)
    assert options.pop("visibility_timeout") == 300
    assert options == {
        "region": "eu-north-1",
        "is_secure": False,
        "queue_name_prefix": "fleet-cp-",
        "wait_time_seconds": 10,
        "polling_interval": 0,
    }


def test_tls_checks_the_certificate() -> None:
    made = broker("rediss://:secret@broker.example:6380/1?prefix=two")

    assert made.url == "rediss://:secret@broker.example:6380/1?ssl_cert_reqs=required"
    assert "secret" not in made.shown
    assert made.transport_options["global_keyprefix"] == "two:cp:"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (QUEUE, "one of its own"),
        (f"{QUEUE}?prefix=other", "one of its own"),
        ("amqp://guest:guest@localhost", "amqp://…' is no broker"),
        ("memory://", "is no broker"),
        ("redis://127.0.0.1/x", "no number of a database"),
        ("sqs://me:secret@prefix", "no credentials"),
        ("sqs://prefix/path?region=eu-north-1", "is no broker"),
    ],
)
def test_a_broker_that_cannot_be_one_is_refused(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        broker(url)

    assert "guest@" not in str(caught.value) and "secret" not in str(caught.value)


def test_a_broker_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://elsewhere/1")

    with pytest.raises(UsageError, match="CELERY_BROKER_"):
        make_app(broker())


def test_a_broker_that_is_away_is_told_at_the_start_and_waited_for_later() -> None:
    away = broker(f"redis://:secret@127.0.0.1:{free_port()}/1")
    app = make_app(away)

    with pytest.raises(QueueError, match="cannot be reached") as caught:
        reach(app, away)
    sender(app)("dispatch")  # logged, and no error

    assert caught.value.retryable and "secret" not in str(caught.value)


def test_a_broker_on_sqs_that_has_enough_is_told_at_the_start_and_waited_for_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    on_sqs = broker("sqs://fleet?endpoint=http://127.0.0.1:4100&region=eu-north-1")
    app = make_app(on_sqs)
    throttled = ClientError({"Error": {"Code": "RequestThrottled"}}, "SendMessage")

    with patch.object(app, "send_task", side_effect=throttled):
        sender(app)("dispatch")  # logged, and no error
    with (
        patch("gristmill.control.celery._ensure", side_effect=throttled),
        pytest.raises(QueueError, match="RequestThrottled"),
    ):
        reach(app, on_sqs)


class SchedulerOfNoBroker(Scheduler):
    def apply_async(self, *args: Any, **options: Any) -> None:
        raise OperationalError("away")


def test_that_beat_cannot_ring_is_said_once_a_minute_and_without_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    scheduler = SchedulerOfNoBroker(make_app(broker()), lazy=True)
    entry = scheduler.Entry(name="sweep", task="sweep", schedule=1.0, app=scheduler.app)
    log, quiet = logging.getLogger("celery.beat"), OutageFilter(lambda: now[0])
    log.addFilter(quiet)
    try:
        for now[0] in (0.0, 1.0, 59.0, 61.0):
            scheduler.apply_entry(entry)
    finally:
        log.removeFilter(quiet)

    assert [record.getMessage() for record in caplog.records] == [
        "tasks not rung for reason=away",
        "tasks not rung for reason=away",
    ]
    assert not any(record.exc_info for record in caplog.records)
