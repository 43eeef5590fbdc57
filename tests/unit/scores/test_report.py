"""The report as Markdown and HTML: what a caller's texts say stays text, in its cell."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from gristmill.score import report_files
from gristmill.scores.figures import Classes, Figures, Ratio
from gristmill.scores.plot import reliability_plot
from gristmill.scores.report import Report, markdown, number
from gristmill.scores.report_html import html

EVIL = "<script>alert(1)</script> | a\n`b` [c](d) & é"


def report() -> Report:
    figures = Figures({"accuracy": Ratio("is_correct")}, Classes((EVIL, "no")))
    for i in range(20):
        row = {"confidence": 0.55, "is_correct": i % 4 > 0, "prediction_idx": i % 2, "gold_idx": 1}
        figures.add(row)
    return Report(
        task="choices",
        model="M",
        data=f"{EVIL}.csv",
        asked={"prompt": EVIL},
        computed={"dtype": "float32"},
        num_rows=23,
        findings=figures.findings(num_resamples=20),
        failed={"context_length_exceeded": 3},
        num_resamples=20,
        seed=0,
    )


def test_texts_of_callers_stay_texts_in_html() -> None:
    made = report()
    seen: list[str] = []
    texts: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            seen.append(tag)

        def handle_data(self, data: str) -> None:
            texts.append(data)

    page = html(made, plot=reliability_plot(made.findings.reliability))
    Reader().feed(page)

    assert "script" not in seen and seen.count("img") == 1
    assert EVIL in texts and "0.75" in texts
    assert "http" not in page, "it needs nothing else"


def test_every_line_of_a_markdown_table_has_as_many_cells_as_its_head() -> None:
    text = markdown(report(), plot="a.png")

    tables = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    assert len(tables) == 5
    for table in tables:
        cells = [len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()]
        assert len(set(cells)) == 1, table
    assert not re.search(r"(?<!\\)[<`]", text) and "![Reliability" in text
    assert "| failed: context\\_length\\_exceeded | 3 |" in text
    assert "95 % of 20 samples" in text


def test_a_report_is_a_json_document_too() -> None:
    document = json.loads(json.dumps(report().document()))

    assert document["findings"]["figures"][0]["name"] == "accuracy"
    assert document["failed"] == {"context_length_exceeded": 3}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.123456, "0.1235"), (0.0, "0"), (12345.6, "12,346"), (1e-9, "1e-09")],
)
def test_numbers_are_shown_with_four_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("output", "plot"),
    [
        ("a/scored.csv", "a/scored.reliability.png"),
        ("a/v1.2/x.y.jsonl.zst", "a/v1.2/x.y.reliability.png"),
        ("x.y.CSV", "x.y.reliability.png"),
        ("s3://b/a.parquet?endpoint=http://h:1", "s3://b/a.reliability.png?endpoint=http://h:1"),
    ],
)
def test_the_report_lies_beside_the_output(output: str, plot: str) -> None:
    assert report_files(output)["plot"] == plot
