"""The weights are fetched from the disk while torch is imported, and nothing else is."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pipeline import MemoryStore, worker_config

from gristmill.errors import OutOfMemory
from gristmill.queues.memory import MemoryQueue
from gristmill_worker.worker import build

MIB = 1 << 20


def test_the_kernel_is_asked_for_all_of_the_weights_while_the_engine_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, int, int]] = []
    all_of_it = threading.Event()

    def advise(fd: int, begin: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        asked.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, begin, begin + length))
        if len(asked) == 4:
            all_of_it.set()

    def load(config: Any) -> None:
        assert all_of_it.wait(60)
        raise OutOfMemory("too large")

    for name, size in (("a.safetensors", 9 * MIB), ("b.safetensors", 1), ("config.json", 1)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr("gristmill_worker.equip.load_engine", load)

    with pytest.raises(OutOfMemory):
        build(replace(worker_config(), model_path=tmp_path), MemoryQueue(60.0), MemoryStore())

    assert [name for name, *_ in asked] == ["a.safetensors"] * 3 + ["b.safetensors"]
    assert [begin for _, begin, _ in asked] == [0, 4 * MIB, 8 * MIB, 0]
    assert all(end - begin == 4 * MIB for _, begin, end in asked)
