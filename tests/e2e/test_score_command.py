"""`gristmill score` as a process: against plain passes of the model, and through a service."""

from __future__ import annotations

import asyncio
import csv
import json
import math
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Commands
from gristmill_process import Gristmill
from score_oracle import LABELS, Oracle, rows

from gristmill.client import AsyncClient, Client
from gristmill.data import read_rows, write_rows
from gristmill.score import Choices, Embedded, Gold, Prompt, Template, score

EXAMPLE = Path(__file__).parents[2] / "producer/examples/offline_scoring.py"


def options(task: str = "choices") -> list[str]:
    return [
        *("--task", task, "--prompt", "Review: {text}\nSentiment: ", "--gold", "sentiment"),
        *("--choice", "positive", "--choice", "negative", "--id", "id", "--bootstrap", "50"),
    ]


@pytest.fixture(scope="module")
def here(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Gristmill:
    """A folder in which the command has scored in.csv into out.csv."""
    gristmill = Gristmill(tmp_path_factory.mktemp("here"), tiny_model)
    write_rows(gristmill.folder / "in.csv", rows())
    done = gristmill.call(
        *("score", "in.csv", "-o", "out.csv", "--model", str(tiny_model), *options())
    )
    assert done.returncode == 0, done.stderr
    (gristmill.folder / "said").write_text(done.stdout)
    return gristmill


def test_B59_the_space_before_choices_moves_and_a_csv_has_the_scores_of_a_plain_computation(
    here: Gristmill, tiny_model: Path
) -> None:
    oracle = Oracle(tiny_model)

    found = list(read_rows(here.folder / "out.csv"))

    right = 0
    for row, source in zip(found, rows(), strict=True):
        assert {name: row[name] for name in source} == source
        sums = [oracle.continuation(f"Review: {row['text']}\nSentiment:", f" {x}") for x in LABELS]
        shares = [math.exp(value) / sum(map(math.exp, sums)) for value in sums]
        assert json.loads(row["probabilities"]) == pytest.approx(shares, rel=1e-4)
        assert json.loads(row["logprobs"]) == pytest.approx(sums, rel=1e-5)
        best = shares.index(max(shares))
        assert row["prediction"] == LABELS[best]
        assert row["is_correct"] == str(LABELS[best] == source["sentiment"]).lower()
        assert float(row["margin"]) == pytest.approx(max(shares) - min(shares), rel=1e-3, abs=1e-6)
        assert row["error_code"] == row["error_message"] == ""
        right += LABELS[best] == source["sentiment"]
    report = (here.folder / "out.report.md").read_text()
    assert f"| accuracy | {right / 24:.4g} |" in report
    said = (here.folder / "said").read_text()
    assert re.search(rf"^accuracy +{right / 24:.4g} ", said, re.MULTILINE), said
    page = (here.folder / "out.report.html").read_text()
    assert "<h2>Confusion</h2>" in page and "data:image/png;base64," in page
    assert (here.folder / "out.reliability.png").read_bytes().startswith(b"\x89PNG")
    assert not (here.folder / "out.csv.work").exists()


@pytest.fixture(scope="module")
def service(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`gristmill up` with the tiny model: (base URL, key)."""
    folder, cache = tmp_path_factory.mktemp("up"), str(tiny_model.with_name("cache"))
    environ = {"GRISTMILL_CACHE_DIR": cache, "GRISTMILL_NUM_THREADS": "1"}
    commands = Commands(folder, environ, nursery=None)
    data = str(folder / "data")
    up = commands.start("up", "--model", str(tiny_model), "--port", "0", "--data-dir", data)
    try:
        yield up.told(r"at (http://\S+/v1)$"), up.told(r"^(gm_\w+)$")
    finally:
        commands.close()


def test_a_service_gives_the_same_scores_and_the_same_report(
    service: Any, here: Gristmill, gristmill: Gristmill
) -> None:
    url, key = service
    write_rows(gristmill.folder / "in.csv", rows())

    done = gristmill.call(
        *("score", "in.csv", "-o", "out.csv", "--model", str(gristmill.model), *options()),
        *("--base-url", url, "--json"),
        GRISTMILL_API_KEY=key,
    )

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["num_rows"] == 24 and document["failed"] == {}
    for path in here.folder.glob("out.*"):
        assert (gristmill.folder / path.name).read_bytes() == path.read_bytes()


def test_both_clients_score_by_their_service(service: Any, here: Gristmill, tmp_path: Path) -> None:
    url, key = service
    task = Choices(
        Prompt(Template("Review: {text}\nSentiment: "), chat=False),
        tuple(map(Template, LABELS)),
        gold=Gold("sentiment"),
    )
    asked: dict[str, Any] = {"model": str(here.model), "id_column": "id", "num_resamples": 50}

    with Client(base_url=url, api_key=key) as client:
        one = client.score(rows(), task, output=tmp_path / "one.csv", **asked)
    other = asyncio.run(
        AsyncClient(base_url=url, api_key=key).score(
            iter(rows()), task, output=tmp_path / "other.csv", **asked
        )
    )

    assert one.findings == other.findings
    for name in ("one", "other"):
        assert (tmp_path / f"{name}.csv").read_bytes() == (here.folder / "out.csv").read_bytes()


def test_the_example_of_offline_scoring_runs(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tiny_model.with_name("cache")))
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tiny_model), "6", str(tmp_path)])

    runpy.run_path(str(EXAMPLE), run_name="__main__")

    shown = capsys.readouterr().out
    assert "accuracy: " in shown and "mean satisfaction: " in shown
    with (tmp_path / "sentiment.csv").open() as file:
        assert len(list(csv.reader(file))) == 7
    assert (tmp_path / "sentiment.report.html").is_file()


@pytest.mark.slow
@pytest.mark.real_model
def test_the_reviews_of_the_readme_are_told_apart_by_the_real_model(
    smollm2_folder: Path, tmp_path: Path
) -> None:
    reviews = Path(__file__).parents[2] / "producer/examples/reviews.csv"
    task = Choices(
        Prompt(Template("Review: {text}\nThe sentiment of this review is "), chat=False),
        tuple(map(Template, LABELS)),
        gold=Gold("sentiment"),
    )

    report = score(
        reviews, task, Embedded(str(smollm2_folder)), output=tmp_path / "a.csv", limit=100
    )

    accuracy = report.figures["accuracy"]
    assert accuracy.low is not None and accuracy.low > 0.5, "better than chance"
