"""A service with a FakeEngine on a real port, and people who look at its pages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

TESTS = Path(__file__).parents[1]
for folder in ("api", "integration", "services", "dashboard"):
    sys.path.insert(0, str(TESTS / folder))

from house import House  # noqa: E402


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with (
        patch("gristmill.control.webhooks._LOOK_EVERY_S", 0.02),
        House.opened(webhook_allowed_networks="127.0.0.0/8") as house,
    ):
        yield house
