"""What a container allows counts, not what its machine has."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gristmill_worker.memory import free_memory_bytes


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_the_limit_of_the_container_counts(tmp_path: Path, limit: str, used: str) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("50000000\n")
    (tmp_path / used).write_text("30000000\n")

    assert free_memory_bytes(tmp_path) == 20_000_000


def test_without_a_limit_it_is_what_the_machine_has(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("30000000\n")
    available = psutil.virtual_memory().available

    assert free_memory_bytes(tmp_path) == pytest.approx(available, rel=0.5)
