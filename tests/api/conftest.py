"""A service with a FakeEngine, on a real port of this machine, and the official client for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
for folder in (TESTS / "api", TESTS / "integration", TESTS / "services"):
    sys.path.insert(0, str(folder))

from house import House  # noqa: E402


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with House.opened() as house:
        yield house
