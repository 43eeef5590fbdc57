"""Crash points: what is followed, what is broken, and that each one stands in the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import crash_points
from gristmill.errors import StoreError, UsageError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    crash_points.arm({})


def test_nothing_happens_where_no_test_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    crash_points.arm({})

    crash_points.at("stored", attempt="att-a")

    assert list(tmp_path.iterdir()) == []


def test_each_passing_is_one_line_of_the_history(tmp_path: Path) -> None:
    crash_points.arm({crash_points.HISTORY: str(tmp_path / "history")})

    crash_points.at("stored", attempt="att-a", seq=0)
    crash_points.at("rang")

    first, second = map(json.loads, (tmp_path / "history").read_text().splitlines())
    assert (first["e"], first["attempt"], first["seq"]) == ("stored", "att-a", 0)
    assert second["e"] == "rang" and first["t"] <= second["t"]


def test_it_breaks_at_the_passing_that_was_chosen_and_only_then(tmp_path: Path) -> None:
    history = tmp_path / "history"
    plan = {crash_points.CRASH_POINT: "stored=raise:2", crash_points.HISTORY: str(history)}
    crash_points.arm(plan)

    crash_points.at("stored")
    crash_points.at("rang")
    with pytest.raises(crash_points.CrashPointReached):
        crash_points.at("stored")
    crash_points.at("stored")

    assert len(history.read_text().splitlines()) == 4


def test_an_outage_can_be_made() -> None:
    crash_points.arm({crash_points.CRASH_POINT: "accepting=fail"})

    with pytest.raises(StoreError):
        crash_points.at("accepting")


@pytest.mark.parametrize("plan", ["stored", "nowhere=exit", "stored=explode", "stored=exit:0"])
def test_a_plan_that_names_nothing_is_refused_with_what_there_is(plan: str) -> None:
    with pytest.raises(UsageError, match=r"POINT=ACTION|whole number"):
        crash_points.arm({crash_points.CRASH_POINT: plan})


def test_each_point_that_is_listed_stands_in_the_code_and_no_other() -> None:
    files = [*ROOT.glob("producer/**/*.py"), *ROOT.glob("worker/**/*.py")]
    text = "\n".join(path.read_text("utf-8") for path in files)

    standing = re.findall(r"crash_points\.at\(\s*\"([a-z-]+)\"", text)

    assert set(standing) == set(crash_points.WORKER_POINTS + crash_points.CONTROL_POINTS)
