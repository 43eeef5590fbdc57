"""`gristmill score`: which options go together, and what is said where they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Gristmill = Callable[..., Result]


def call(gristmill: Gristmill, task: str, *options: str, out: str = "out.csv") -> Result:
    Path("in.csv").write_text("q,a\none,two\n")
    return gristmill("score", "in.csv", "-o", out, "--model", "M", "--task", task, *options)


@pytest.mark.parametrize(
    ("task", "options", "what"),
    [
        ("loglikelihood", ["--prompt", "{q}"], "needs --target"),
        ("loglikelihood", ["--prompt", "{q}", "--target", "a"], "Write a column between braces"),
        ("choices", ["--choice", "x"], "needs --prompt"),
        ("choices", ["--prompt", "{q}"], "Name the choices once"),
        ("choices", ["--prompt", "{q}", "--text", "{q}"], "--text means nothing to the task"),
        ("perplexity", ["--text", "{q}", "--gold", "a"], "--gold means nothing to the task"),
        ("perplexity", ["--text", "{q"], "is never closed"),
        ("perplexity", ["--text", "@none.txt"], "'none.txt' cannot be read"),
        ("judge", ["--prompt", "{q}", "--answers", "5-1"], "no range"),
        ("judge", ["--prompt", "{q}", "--answers", "1-5", "--plain", "--reason", "9"], "in a chat"),
        ("perplexity", ["--text", "{z}"], "Row 1: .*'z'.* The columns are 'q', 'a'"),
        ("perplexity", ["--text", "{q}", "--id", "z"], "Row 1: the ids"),
        ("perplexity", ["--text", "{q}", "--revision", "r", "--base-url", "http://x/v1"], "leave"),
    ],
)
def test_a_call_that_is_wrong_is_refused_before_any_model_is_loaded(
    gristmill: Gristmill, task: str, options: list[str], what: str
) -> None:
    done = call(gristmill, task, *options)

    import re

    assert done.exit_code == 2
    assert re.search(what, done.stderr), done.stderr


def test_an_output_whose_format_is_not_known_is_refused(gristmill: Gristmill) -> None:
    done = call(gristmill, "perplexity", "--text", "{q}", out="out.xlsx")

    assert done.exit_code == 2 and ".parquet" in done.stderr


def test_a_data_set_without_rows_is_refused(gristmill: Gristmill, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("q\n")
    options = ["-o", "out.csv", "--model", "M", "--task", "perplexity", "--text", "{q}"]

    done = gristmill("score", "none.csv", *options)

    assert done.exit_code == 2 and "no rows" in done.stderr


def test_a_column_that_the_scores_need_is_refused(gristmill: Gristmill, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("q,logprob\nx,1\n")
    options = ["-o", "out.csv", "--model", "M", "--task", "perplexity", "--text", "{q}"]

    done = gristmill("score", "a.csv", *options)

    assert done.exit_code == 2 and "'logprob'" in done.stderr and "Rename yours" in done.stderr


def test_a_work_folder_with_other_things_in_it_is_left_alone(
    gristmill: Gristmill, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("x")

    done = call(gristmill, "perplexity", "--text", "{q}", "--work-dir", "mine")

    assert done.exit_code == 2 and "other things" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
