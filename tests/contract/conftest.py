"""Lets the tests here use the servers and Queues that `tests/services` starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from aws_server import aws
from queues import BACKENDS, Backend

__all__ = ["aws"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with BACKENDS[request.param]() as backend:
        yield backend
