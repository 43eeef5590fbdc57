"""Real processes, killed with SIGKILL at random moments, and what is in the files in the end."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from local_run import Desk, comparable, make_line
from pipeline import fast_folder

CHILD = Path(__file__).with_name("child.py")
STEP_S = 0.004
LINES = [make_line(f"r{idx}", **({"best_of": 3} if idx % 8 == 3 else {})) for idx in range(40)]


@dataclass
class Life:
    """What one process said, and whether it came to its end."""

    events: list[str]
    ended: bool

    def counts(self) -> list[tuple[int, int, int]]:
        """(total, completed, failed) as they were shown, once all was read."""
        pattern = re.compile(r"(?:running|writing) total=(\d+) completed=(\d+) failed=(\d+)")
        matches = (pattern.match(event) for event in self.events)
        return [(int(m[1]), int(m[2]), int(m[3])) for m in matches if m]


class Nursery:
    """Where processes are born from one that has imported everything."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    def live(self, folder: Path, *, kill_after: int | None = None) -> Life:
        """A process to its end, or to its kill after so many events."""
        fifo = folder / "events"
        if not fifo.exists():
            os.mkfifo(fifo)
        assert self._server.stdin is not None
        self._server.stdin.write(f"{folder} {STEP_S} {fifo} {kill_after or 0}\n")
        self._server.stdin.flush()
        assert int(self._answer()), "its pid"
        with fifo.open() as lines:
            events = [line.strip() for line in lines]
        return Life(events, ended=self._answer() == "0")

    def close(self) -> None:
        self._server.communicate()

    def _answer(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery) -> tuple[Any, list[str]]:
    """The lines of both files, and the events on the way."""
    with fast_folder() as folder:
        desk = Desk(folder)
        desk.write(LINES)
        life = nursery.live(folder)
        assert life.ended, life.events
        return lines_of(desk), life.events


@pytest.fixture
def desk() -> Iterator[Desk]:
    with fast_folder() as folder:
        desk = Desk(folder)
        desk.write(LINES)
        yield desk


def lines_of(desk: Desk) -> tuple[list[Any], list[Any]]:
    return [comparable(x) for x in desk.answers], [comparable(x) for x in desk.failures]


def test_ten_kills_at_random_moments_change_nothing_b35_b47(
    nursery: Nursery, undisturbed: tuple[Any, list[str]], desk: Desk
) -> None:
    lines, events = undisturbed
    rng = random.Random(20261130)
    lives = [
        nursery.live(desk.folder, kill_after=rng.randrange(1, len(events) // 5)) for _ in range(10)
    ]
    lives.append(nursery.live(desk.folder))

    assert lives[-1].ended, lives[-1].events
    assert lines_of(desk) == lines
    assert not desk.work.exists()
    counts = [count for life in lives for count in life.counts()]
    assert {total for total, _, _ in counts} == {40}
    for series in zip(*counts, strict=True):
        assert list(series) == sorted(series), "a count shrank"
    assert counts[-1] == (40, 35, 5)
    decoded = Counter((desk.folder / "decoded.log").read_text().splitlines())
    num_kills = sum(not life.ended for life in lives)
    assert num_kills == 10
    # At most 8 rows run at once; a flush, and what a busy machine adds to it, is some 10 steps.
    assert sum(decoded.values()) - len(decoded) <= num_kills * 8 * 10


@pytest.mark.parametrize(
    "moment", ["reading", "loading", "fsync-done", "write", "writing", "last fsync", "last write"]
)
def test_a_kill_at_each_turn_is_survived_b35(
    nursery: Nursery, undisturbed: tuple[Any, list[str]], desk: Desk, moment: str
) -> None:
    lines, events = undisturbed
    word = moment.removeprefix("last ")
    places = [i for i, event in enumerate(events) if event.split()[0] == word]
    kill_after = (places[-1] if moment.startswith("last") else places[0]) + 1

    nursery.live(desk.folder, kill_after=kill_after)
    last = nursery.live(desk.folder)

    assert last.ended, last.events
    assert lines_of(desk) == lines
    assert not desk.work.exists()
