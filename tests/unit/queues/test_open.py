"""A Queue is opened by its URL, and what is wrong with one is said at once and without secrets."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
from ports import free_port
from redis_server import server_names, shared_server

from gristmill.errors import QueueError, QueueRefused, UsageError
from gristmill.queues.memory import MemoryQueue
from gristmill.queues.open import open_queue
from gristmill.queues.redis_server import parse_redis_url


def test_each_memory_queue_is_a_new_one() -> None:
    first, second = open_queue("memory://", 7.0), open_queue("memory://", 7.0)
    first.send("bulk", b"a")

    assert isinstance(first, MemoryQueue)
    assert first.lease_s == 7.0
    assert second.receive("bulk", 1, 0) == []


@pytest.mark.parametrize("name", server_names())
def test_a_redis_queue_is_opened_by_its_url(name: str) -> None:
    queue = open_queue(f"{shared_server(name).url}?prefix=open-{name}&timeout_s=2.5", 9.0)
    queue.send("bulk", b"a")

    (lease,) = queue.receive("bulk", 1, 0)

    assert (lease.body, queue.lease_s) == (b"a", 9.0)
    assert queue.ack(lease)
    queue.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("kafka://u:secret@h", ["kafka://…", "redis://HOST"]),
        ("", ["'' is no queue"]),
        ("localhost:6379", ["is no queue"]),
        ("memory://x", ["stands alone"]),
        ("redis://u:secret@h/x", ["redis://h:6379/x", "'x' is no number of a database"]),
        ("redis://u:secret@h:port", ["Port could not be cast"]),
        ("redis://u:secret@h?decode_responses=1", ["'decode_responses' is no parameter", "prefix"]),
        ("redis://u:secret@h?prefix=a:b", ["prefix='a:b'"]),
        ("redis://u:secret@h?prefix=", ["at least one"]),
        ("redis://u:secret@h?eviction=maybe", ["refuse, allow"]),
        ("redis://u:secret@h?timeout_s=0", ["0.1 to 3600"]),
        ("redis://u:secret@h?timeout_s=soon", ["timeout_s='soon'"]),
    ],
)
def test_a_url_that_is_wrong_is_a_usage_error_without_its_password(
    url: str, words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        open_queue(url, 60.0)

    for word in words:
        assert word in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_retryable_and_named_without_the_password() -> None:
    port = free_port()

    with pytest.raises(QueueError, match=f"redis://127.0.0.1:{port}.* see that it runs") as caught:
        open_queue(f"redis://user:secret@127.0.0.1:{port}/0", 60.0)

    assert caught.value.retryable
    assert "secret" not in str(caught.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_redis(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "redis" or name.startswith("redis."):
            raise ModuleNotFoundError(f"No module named {name!r}", name="redis")
        return real(name, *args, **kwargs)

    for module in ("gristmill.queues.redis", "gristmill.queues.redis_server"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", without_redis)

    with pytest.raises(UsageError, match=r"package redis: pip install 'gristmill\[redis\]'"):
        open_queue("redis://localhost", 60.0)


def test_a_wrong_password_is_refused_for_good() -> None:
    server = shared_server("redis6")

    with pytest.raises(QueueRefused, match="User or password") as caught:
        open_queue(server.url.replace("//", "//nobody:secret@"), 60.0)

    assert not caught.value.retryable
    assert "secret" not in str(caught.value)


def test_what_tls_needs_is_passed_on() -> None:
    parsed = parse_redis_url("rediss://:pw@h:7000/3?ssl_ca_certs=/ca.pem&prefix=p&timeout_s=1")

    assert parsed.server == "rediss://:pw@h:7000/3?ssl_ca_certs=%2Fca.pem"
    assert parsed.shown == "rediss://h:7000/3"
    assert (parsed.prefix, parsed.timeout_s) == ("p", 1.0)
