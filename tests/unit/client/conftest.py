"""A stage for each test, and no settings of whoever runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from client_stage import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of whoever runs the tests, and no profile."""
    for name in ("API_KEY", "BASE_URL"):
        monkeypatch.delenv(f"GRISTMILL_{name}", raising=False)
        monkeypatch.delenv(f"OPENAI_{name}", raising=False)
    monkeypatch.delenv("GRISTMILL_PROFILE", raising=False)
    monkeypatch.setenv("GRISTMILL_CONFIG", str(tmp_path / "config.toml"))
