"""`gristmill-worker bench`: the rungs it measures, and what it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny import as_loaded, make_model, save_folder
from typer.testing import CliRunner

from gristmill_worker.bench import climb
from gristmill_worker.cli import app


def test_every_rung_is_measured(tmp_path: Path) -> None:
    loaded = as_loaded(make_model("llama"), packed=False)

    rungs = list(
        climb(loaded, cache_dir=tmp_path, rows=[1, 3], prompt_tokens=[5, 20], new_tokens=4)
    )

    assert [(rung.num_rows, rung.num_prompt_tokens) for rung in rungs] == [
        (1, 5),
        (1, 20),
        (3, 5),
        (3, 20),
    ]
    for rung in rungs:
        assert rung.prefill_s > 0 and rung.itl_s > 0
        assert rung.decode_tokens_per_s == pytest.approx(rung.num_rows / rung.itl_s)


def test_rungs_beyond_the_window_or_the_limit_are_left_out(tmp_path: Path) -> None:
    loaded = as_loaded(make_model("llama"), packed=False)
    lengths = [8, loaded.max_model_len]

    rungs = climb(
        loaded, cache_dir=tmp_path, rows=[2, 4], prompt_tokens=lengths, new_tokens=2, max_tokens=16
    )

    assert [(rung.num_rows, rung.num_prompt_tokens) for rung in rungs] == [(2, 8)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "cache"))
    return lambda *arguments: CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_the_command_prints_a_table(bench: Any, tmp_path: Path) -> None:
    folder = save_folder(tmp_path, make_model("llama"))

    result = bench(folder, "--rows", "1,2", "--prompts", "4", "--new-tokens", "3")

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("| rows | prompt tokens |")
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1", "2"]


@pytest.mark.parametrize("numbers", ["", "1,x", "0", "-4", "1.5"])
def test_rows_that_are_no_numbers_are_refused(bench: Any, tmp_path: Path, numbers: str) -> None:
    folder = save_folder(tmp_path, make_model("llama"))

    result = bench(folder, "--rows", numbers)

    assert result.exit_code == 2
    assert "--rows takes whole numbers" in result.output


def test_a_folder_without_a_model_is_refused(bench: Any, tmp_path: Path) -> None:
    result = bench(tmp_path)

    assert result.exit_code == 1
    assert "holds no config.json" in result.output
