"""A service with a FakeEngine on a real port, and people who look at its pages."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for folder in ("api", "integration", "services", "dashboard"):
    sys.path.insert(0, str(TESTS / folder))

from webhook_house import house as house  # noqa: E402
