"""Scenarios as documents, and the command that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_fleet import batch, scenario
from typer.testing import CliRunner

from gristmill.cli import app
from gristmill.errors import UsageError
from gristmill.simulator.scenario_file import find_scenario, read_scenario, to_document
from gristmill.simulator.scenarios import SCENARIOS


def document(**changes: Any) -> dict[str, Any]:
    return {**to_document(scenario(batch(num_rows=4))), **changes}


def test_a_document_is_read_as_it_was_written() -> None:
    for make in SCENARIOS.values():
        made = make()

        assert read_scenario(json.dumps(to_document(made)).encode(), "x") == made


def changed(path: str, value: Any) -> dict[str, Any]:
    """A document with one thing changed in it; numbers in the path lead into lists."""
    found = document()
    *steps, last = (int(step) if step.isdecimal() else step for step in path.split("."))
    place: Any = found
    for step in steps:
        place = place[step]
    place[last] = value
    return found


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (changed("flet", []), "unknown field `flet`"),
        (changed("trace.batches.0.rows", 3), r"unknown field `trace\.batches\[0\]\.rows`"),
        (changed("fleet.0.0.max_sequences", 3), "unknown field .*max_sequences"),
        (changed("fleet", []), "no machine"),
        (changed("fleet.0.0.kv_tokens", 0), "above 0"),
        (changed("fleet.0.0.decode_tokens_per_s", "fast"), "Expected `float`"),
        (changed("fleet.0.0.max_num_batched_tokens", 1), "one token a step"),
        (changed("trace.batches", []), "must be batches"),
        (changed("trace.batches.0.num_rows", 0), "needs rows"),
        (changed("trace.batches.0.kinds.0.max_tokens", 0), "rows without tokens"),
        (changed("trace.name", "../x"), "letters, digits"),
        (changed("deaths", [{"at": 1.0, "worker": 7}]), "no worker 7"),
    ],
)
def test_what_is_wrong_with_a_document_is_said(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_scenario(json.dumps(bad).encode(), "mine.json")


def test_a_file_that_is_no_json_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{")

    with pytest.raises(UsageError, match=r"no scenario.*mixed --json"):
        find_scenario(str(path))
    with pytest.raises(UsageError, match="uniform, mixed"):
        find_scenario("nowhere.json")


def test_the_command_prints_a_table_and_draws(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document()))

    done = CliRunner().invoke(app, ["simulate", str(path), "-o", str(tmp_path / "plots")])

    assert done.exit_code == 0, done.output
    assert "rows/s" in done.output
    assert (tmp_path / "plots" / "test.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_json_that_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document()))

    done = CliRunner().invoke(app, ["simulate", str(path), "--json"])

    (found,) = json.loads(done.output)
    assert found["scenario"] == document()
    assert [one["policy"] for one in found["figures"]] == [
        *("fifo", "fifo-mixed", "one-lane", "router")
    ]
    assert all(one["is_complete"] for one in found["figures"])


def test_the_command_says_what_is_wrong() -> None:
    done = CliRunner().invoke(app, ["simulate", "nowhere"])

    assert done.exit_code == 2
    assert "There is no scenario" in done.output
