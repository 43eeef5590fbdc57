"""A Redis of each version, empty, and a Queue on it; servers come from tests/services."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

sys.path.insert(0, str(Path(__file__).parents[2] / "services"))

from redis_server import server_names, shared_server

from gristmill.queues.redis import RedisQueue
from gristmill.queues.redis_server import RedisServer, parse_redis_url


@pytest.fixture(params=server_names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(name: str) -> Iterator[redis.Redis]:
    """A server that is empty, and its command line."""
    with shared_server(name).client as client:
        client.flushall()
        yield client
        client.flushall()


@pytest.fixture
def queue(name: str, client: redis.Redis) -> Iterator[RedisQueue]:
    """A Queue that looks for ghosts at each receive."""
    server = RedisServer(parse_redis_url(shared_server(name).url))
    queue = RedisQueue(server, 60.0, repair_interval_s=0.0)
    yield queue
    queue.close()
