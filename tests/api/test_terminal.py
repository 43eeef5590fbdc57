"""Commands on a real terminal: what is drawn there and nowhere else, and what keys do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House, make_lines
from terminal import CTRL_C, Terminal


@pytest.fixture
def environ(house: House, tmp_path: Path) -> dict[str, str]:
    """Of somebody with a key, who has not set anything else."""
    return {
        "GRISTMILL_BASE_URL": f"{house.service.url}/v1",
        "GRISTMILL_API_KEY": house.key(),
        "GRISTMILL_CONFIG": str(tmp_path / "config.toml"),
        "GRISTMILL_NO_PROGRESS": "",
        "NO_COLOR": "",
    }


@pytest.fixture
def held_batch(house: House) -> Iterator[str]:
    """Which stands still in its middle until the Engine goes on."""
    house.pause_midway(4)
    batch = house.create(make_lines(12))
    house.wait(batch, lambda batch: batch.request_counts and batch.request_counts.completed >= 4)
    yield batch.id
    house.engine.resume()


def test_watch_redraws_in_place_and_ends_by_itself(
    house: House, environ: dict[str, str], held_batch: str
) -> None:
    argv = ("watch", held_batch, "--interval", "50ms")
    with Terminal(argv, environ) as terminal:
        drawn = terminal.wait_for(r"rows +12: [4-9] answered")
        terminal.wait_for(r"rows +12: [4-9] answered", behind=drawn)  # and once more
        house.engine.resume()
        code = terminal.wait()

    assert code == 0
    assert "\x1b[1A" in terminal.raw and "\x1b[2K" in terminal.raw  # up, over what was there
    assert terminal.raw.count("\x1b[?25l") <= terminal.raw.count("\x1b[?25h")  # the cursor is back
    for fact in (held_batch, "completed", "rows", "12 answered, 0 failed", "100.0%", "TTFT", "ITL"):
        assert fact in terminal.text, fact


def test_ctrl_c_ends_watch_and_not_the_batch_and_says_how_to_go_on(
    house: House, environ: dict[str, str], held_batch: str
) -> None:
    with Terminal(("watch", held_batch, "--interval", "50ms"), environ) as terminal:
        terminal.wait_for(r"rows +12: [4-9] answered")
        terminal.press(CTRL_C)
        code = terminal.wait()
    state = house.client().batches.retrieve(held_batch).status

    assert code == 130 and state == "in_progress"
    assert f"The batch goes on. To wait again: gristmill wait {held_batch}" in terminal.text
    assert "Traceback" not in terminal.text


def test_wait_shows_a_bar_and_without_colour_if_that_is_wished(
    house: House, environ: dict[str, str], held_batch: str
) -> None:
    with Terminal(("wait", held_batch), environ) as coloured:
        coloured.wait_for(r"in_progress: [4-9]/12 rows")
        with Terminal(("wait", held_batch), {**environ, "NO_COLOR": "1"}) as plain:
            plain.wait_for(r"in_progress: [4-9]/12 rows")
            with Terminal(("wait", held_batch, "--no-progress"), environ) as silent:
                house.engine.resume()
                codes = [terminal.wait() for terminal in (coloured, plain, silent)]

    assert codes == [0, 0, 0]
    assert "━" in coloured.raw and "\x1b[3" in coloured.raw
    assert "━" in plain.raw and "\x1b[3" not in plain.raw
    assert "━" not in silent.raw and "rows/" not in silent.text and "completed" in silent.text


def test_a_terminal_gets_tables_and_is_asked_before_something_ends(
    house: House, environ: dict[str, str], held_batch: str
) -> None:
    with Terminal(("batches", "list", "--limit", "1"), environ) as listed:
        assert listed.wait() == 0
    with Terminal(("cancel", held_batch), environ) as refused:
        refused.wait_for(rf"Stop {held_batch}\? \[y/N\]")
        refused.press("n\n")
        assert refused.wait() == 1
    before = house.client().batches.retrieve(held_batch).status
    with Terminal(("cancel", held_batch), environ) as agreed:
        agreed.wait_for(r"\[y/N\]")
        agreed.press("y\n")
        assert agreed.wait() == 0

    heads, row = listed.text.strip().splitlines()
    assert heads.split()[:2] == ["id", "status"] and row.startswith(held_batch)
    assert before == "in_progress"
    assert house.client().batches.retrieve(held_batch).status in ("cancelling", "cancelled")


def test_waiting_ends_with_its_time_and_the_batch_goes_on(
    environ: dict[str, str], held_batch: str
) -> None:
    with Terminal(("wait", held_batch, "--timeout", "100ms"), environ) as terminal:
        assert terminal.wait() == 124

    assert "It goes on" in terminal.text


def test_a_key_that_is_typed_is_not_shown(
    house: House, environ: dict[str, str], tmp_path: Path
) -> None:
    key = house.key()
    with Terminal(("login",), {**environ, "GRISTMILL_API_KEY": ""}) as terminal:
        terminal.wait_for(r"API key for http\S+: ")
        terminal.press(f"{key}\n")
        code = terminal.wait()

    assert code == 0 and key not in terminal.text
    assert json.dumps(key) in (tmp_path / "config.toml").read_text()
