"""What a Redis server is gets checked at start-up, and its errors are ours, with a way out."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from redis_server import RedisProcess, server_names, shared_server
from tcp_proxy import redis_that_says, tcp_proxy

from gristmill.errors import QueueError, QueueRefused
from gristmill.queues.open import open_queue
from gristmill.queues.redis import RedisQueue
from gristmill.queues.redis_server import RedisServer, parse_redis_url


@pytest.fixture(scope="module", params=server_names())
def server(request: pytest.FixtureRequest) -> Iterator[RedisProcess]:
    """A server whose settings a test may change."""
    server = RedisProcess(request.param).start()
    yield server
    server.remove()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_B39_a_server_that_evicts_is_refused_with_the_way_out(
    server: RedisProcess, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client as client:
        client.config_set("maxmemory-policy", policy)

        with pytest.raises(QueueRefused, match=f"{policy}.*Set 'maxmemory-policy noeviction'"):
            open_queue(server.url, 60.0)
        open_queue(f"{server.url}?eviction=allow", 60.0).close()

        client.config_set("maxmemory-policy", "noeviction")
    assert f"queue may evict messages: maxmemory-policy={policy}" in caplog.text


def test_a_server_that_evicts_only_keys_that_expire_is_none_of_our_business(
    server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        open_queue(server.url, 60.0).close()
        client.config_set("maxmemory-policy", "noeviction")
    assert "may evict" not in caplog.text


def test_a_server_that_forgets_is_used_with_a_warning(
    server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with server.client as client:
        open_queue(server.url, 60.0).close()
        forgetful = caplog.text
        caplog.clear()
        client.config_set("appendonly", "yes")
        open_queue(server.url, 60.0).close()
        client.config_set("appendonly", "no")

    assert "queue forgets" in forgetful
    assert "Set 'appendonly yes'" in forgetful
    assert "queue forgets" not in caplog.text
    assert f"queue ready server={server.url} version=" in caplog.text


def test_a_server_that_is_too_old_is_refused() -> None:
    info = "redis_version:6.0.16\r\nmaxmemory_policy:noeviction\r\n"
    with (
        redis_that_says(f"${len(info)}\r\n{info}", to=b"INFO") as port,
        pytest.raises(QueueRefused, match=r"is Redis 6\.0\.16: 6\.2 or newer, or Valkey"),
    ):
        open_queue(f"redis://127.0.0.1:{port}", 60.0)


@pytest.mark.parametrize(
    ("reply", "retryable", "words"),
    [
        ("READONLY You can't write against a read only replica.", True, "address of the primary"),
        ("LOADING Redis is loading the dataset in memory", True, "still reading its files"),
        ("BUSY Redis is busy running a script.", True, "somebody's script"),
        ("OOM command not allowed when used memory > 'maxmemory'.", True, "raise maxmemory"),
        ("NOREPLICAS Not enough good replicas to write.", True, "Too few replicas"),
        ("MASTERDOWN Link with MASTER is down", True, "primary is away"),
        ("MISCONF Redis is configured to save RDB snapshots", True, "cannot save"),
        ("CLUSTERDOWN The cluster is down", True, "no quorum"),
        ("ERR max number of clients reached", True, "max number of clients"),
        ("ERR something new", True, "something new"),
        ("NOAUTH Authentication required.", False, "User or password"),
        ("WRONGPASS invalid username-password pair", False, "User or password"),
        ("NOPERM this user has no permissions", False, "see its ACL"),
        ("WRONGTYPE Operation against a key holding the wrong kind", False, "another prefix"),
        ("MOVED 1 10.0.0.1:6379", False, "Redis Cluster"),
        ("ERR unknown command `EVALSHA`", False, "Redis 6.2 or newer"),
    ],
)
def test_what_a_server_says_is_an_error_of_ours(reply: str, retryable: bool, words: str) -> None:
    """Fault 17: nothing but a QueueError leaves, and it knows whether to try again."""
    with redis_that_says(f"-{reply}", to=b"EVALSHA") as port:
        url = parse_redis_url(f"redis://u:secret@127.0.0.1:{port}")
        queue = RedisQueue(RedisServer(url), 60.0)

        for call in (
            lambda: queue.send("bulk", b"a", message_id="x"),
            lambda: queue.receive("bulk", 1, 0),
            lambda: queue.stats("bulk"),
        ):
            with pytest.raises(QueueError, match=words) as caught:
                call()
            assert caught.value.retryable is retryable
            assert isinstance(caught.value, QueueRefused) is not retryable
            assert "secret" not in str(caught.value)


def test_a_server_that_is_silent_is_given_up_in_time() -> None:
    """Fault 12: the connection is open, and nothing comes back."""
    with tcp_proxy(shared_server("redis6").port) as proxy:
        queue = open_queue(f"redis://127.0.0.1:{proxy.port}?timeout_s=0.2&prefix=mute", 60.0)
        assert queue.receive("bulk", 1, 0) == []
        queue.send("bulk", b"a")
        proxy.is_mute = True

        with pytest.raises(QueueError, match=r"no answer for 0\.2 s") as caught:
            queue.receive("bulk", 1, 0)
        proxy.is_mute = False

        assert caught.value.retryable
        assert queue.stats("bulk").leased == 1, "the reply was lost, and its Lease must end first"
        queue.close()


def test_keys_of_somebody_else_are_left_alone() -> None:
    server = shared_server("redis6")
    with server.client as client:
        client.set("{theirs}:bulk:messages", "not ours")
        queue = open_queue(f"{server.url}?prefix=theirs", 60.0)

        with pytest.raises(QueueRefused, match="choose another prefix"):
            queue.receive("bulk", 1, 0)

        assert client.get("{theirs}:bulk:messages") == b"not ours"


#: What a user of the server needs; the README says the same.
RULES = (
    "on >pw resetkeys ~{mill}:* +ping +info +evalsha +script|load +exists +time +hget +hset +hdel "
    "+xadd +xlen +xrange +xread +xreadgroup +xpending +xclaim +xack +xdel +xinfo "
    "+xgroup|create +xgroup|delconsumer"
)


def test_a_user_with_few_rights_is_enough(server: RedisProcess) -> None:
    with server.client as client:
        client.execute_command("ACL", "SETUSER", "mill", *RULES.split())
        client.set("other", "secret")
    queue = open_queue(server.url.replace("//", "//mill:pw@") + "?prefix=mill", 60.0)
    queue.send("bulk", b"a", message_id="a")
    queue.send("bulk", b"b", message_id="b")
    first, second = queue.receive("bulk", 9, 0)

    assert queue.renew([first, second]) == {first.id, second.id}
    assert queue.release(first)
    assert queue.dead_letter(second, "no pointer")
    assert queue.ack(*queue.receive("bulk", 9, 0))
    assert queue.receive("bulk", 9, wait_s=0.01) == []
    assert queue.stats("bulk").dead == 1
    queue.close()


def test_a_user_that_may_not_ask_for_info_is_let_in_with_a_warning(
    server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client as client:
        client.execute_command("ACL", "SETUSER", "quiet", "on", ">pw", "~*", "+@all", "-info")

    open_queue(server.url.replace("//", "//quiet:pw@"), 60.0).close()

    assert "queue not checked" in caplog.text
