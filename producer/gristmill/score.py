"""Scores a data set: a score beside each row, and a report of all of them.

    from gristmill.score import Choices, Embedded, Gold, Prompt, Template, score

    task = Choices(
        Prompt(Template("Review: {text}\\nSentiment: "), chat=False),
        (Template("positive"), Template("negative")),
        gold=Gold("sentiment"),
    )
    report = score("reviews.csv", task, Embedded("smollm2-135m"), output="scored.csv")
    print(report.figures["accuracy"])

Memory does not grow with the rows, but for a few numbers of each that the figures are made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import tee
from pathlib import Path
from typing import Any

from gristmill.data.formats import Format, kind_of, stem_of
from gristmill.data.join import (
    RECEIPT_TYPE,
    Outcome,
    in_order_of,
    outcome_of,
    receipt_of,
)
from gristmill.data.places import name_of, needs, open_to_write
from gristmill.data.prompts import Prompt, RowIds
from gristmill.data.rows import Row, Source, read_rows
from gristmill.data.template import Template
from gristmill.data.write import types_of, write_rows
from gristmill.scores.answer import Answered, Answerer, Embedded, Interrupted
from gristmill.scores.choices import Choices, Rule
from gristmill.scores.figures import Figures
from gristmill.scores.judge import Judge
from gristmill.scores.loglikelihood import Loglikelihood, Perplexity
from gristmill.scores.plot import reliability_plot
from gristmill.scores.remote import Remote
from gristmill.scores.report import Report, markdown
from gristmill.scores.report_html import html
from gristmill.scores.task import AnswerUnusable, Gold, Task
from gristmill.scores.work import Rows, work_folder, write_requests

__all__ = [
    "Choices",
    "Embedded",
    "Gold",
    "Interrupted",
    "Judge",
    "Loglikelihood",
    "Perplexity",
    "Prompt",
    "Remote",
    "Report",
    "Rule",
    "Task",
    "Template",
    "report_files",
    "score",
]

_ERRORS = {"error_code": str, "error_message": str}


def score(
    data: Source,
    task: Task,
    answerer: Answerer,
    *,
    output: str | Path,
    id_column: str | None = None,
    limit: int | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
    work_dir: Path | None = None,
) -> Report:
    """Write every row with its score to `output`, and the report beside it (`report_files`).

    `limit` takes only the first rows. A row that was refused or failed has an `error_code`, and no
    score. What is interrupted goes on when it is called again with the same arguments, from its
    work folder (default: OUTPUT.work; of an s3:// output, in the present folder).

    Raises UsageError and DataInvalid before anything is computed, BatchInvalid, Interrupted, and
    what the answerer raises.
    """
    kind = kind_of(name_of(output))
    tally = _Tally(task, with_receipt=kind.format.delimiter is None)
    added, ids = tally.columns(), RowIds(id_column)
    _check_installed(kind.format, added)
    work_dir = work_dir or Path(f"{_local_name(output)}.work")
    with work_folder(work_dir) as folder:
        rows = Rows(data, folder, limit=limit)
        requests = folder / "requests.jsonl"
        write_requests(requests, rows, task, model=answerer.model, ids=ids, added=added)
        answered = answerer.answer(requests, folder, url=task.url)
        scored = tally.scored(rows, answered, ids)
        write_rows(output, scored, types={**types_of(data), **added})
        report = Report(
            task=task.name,
            model=answerer.model,
            data=_name_of_data(data),
            asked=dict(task.settings()),
            computed=tally.computed,
            num_rows=tally.num_rows,
            findings=tally.figures.findings(num_resamples=num_resamples, seed=seed),
            failed=dict(tally.failed),
            num_resamples=num_resamples,
            seed=seed,
        )
        _publish(report, output)
    return report


def _check_installed(format_: Format, added: Mapping[str, Any]) -> None:
    """Raises UsageError now for what would be missed in the end."""
    packages = ["numpy"]
    if format_.is_columnar:
        packages.append("pyarrow")
    if "is_correct" in added:
        packages.append("matplotlib")
    for package in packages:
        if find_spec(package) is None:
            raise needs(package, "This scoring")


@dataclass
class _Tally:
    """Joins rows and results, and sums up as they pass."""

    task: Task
    with_receipt: bool
    num_rows: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    #: What the receipts say of the model; the first of them speaks for all.
    computed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.figures: Figures = self.task.figures()

    def columns(self) -> dict[str, Any]:
        """What is added to each row, with types."""
        receipt = {"receipt": RECEIPT_TYPE} if self.with_receipt else {}
        return {**self.task.columns(), **_ERRORS, **receipt}

    def scored(self, rows: Rows, answered: Answered, ids: RowIds) -> Iterator[Row]:
        empty = dict.fromkeys(self.columns())
        ahead, behind = tee(rows)  # in step: one row is held
        names = (ids.of(row, number) for number, row in enumerate(ahead, 1))
        results = (answered.answers, answered.errors)
        lines = in_order_of(names, *(read_rows(path) for path in results if path.is_file()))
        for number, (row, line) in enumerate(zip(behind, lines, strict=True), 1):
            self.num_rows += 1
            outcome = outcome_of(line)
            found = self._read(outcome, row, number)
            if self.with_receipt:
                found["receipt"] = receipt_of(outcome)
            yield {**row, **empty, **found}

    def _read(self, outcome: Outcome, row: Row, number: int) -> dict[str, Any]:
        code, message = outcome.error_code, outcome.error_message
        if outcome.body is not None:
            self._note(outcome.receipt or {})
            try:
                found = self.task.read(outcome.body, row, number)
            except AnswerUnusable as error:
                code, message = error.code, str(error)
            else:
                self.figures.add({**found.columns, **found.beside})
                return dict(found.columns)
        self.failed[code or "unknown"] += 1
        return {"error_code": code, "error_message": message}

    def _note(self, receipt: Mapping[str, Any]) -> None:
        if not self.computed:
            names = ("model_revision", "engine_version", "dtype")
            self.computed = {
                name.replace("_", " "): str(receipt[name]) for name in names if receipt.get(name)
            }


def report_files(output: str | Path) -> dict[str, str]:
    """Where the report of an output lies: `markdown`, `html` and, if it is graded, `plot`."""
    name = name_of(output)
    base, query = stem_of(name), str(output)[len(name) :]
    return {
        "markdown": f"{base}.report.md{query}",
        "html": f"{base}.report.html{query}",
        "plot": f"{base}.reliability.png{query}",
    }


def _publish(report: Report, output: str | Path) -> None:
    places = report_files(output)
    bins = report.findings.reliability
    plot = reliability_plot(bins) if bins else None
    plot_name = name_of(places["plot"]).rpartition("/")[2] if plot else None
    texts = {
        "markdown": markdown(report, plot=plot_name).encode(),
        "html": html(report, plot=plot).encode(),
        **({"plot": plot} if plot else {}),
    }
    for which, content in texts.items():
        with open_to_write(places[which]) as stream:
            stream.write(content)


def _name_of_data(data: Source) -> str:
    if isinstance(data, str | Path):
        return name_of(data).rpartition("/")[2]
    return f"a {type(data).__name__}"


def _local_name(output: str | Path) -> str:
    name = name_of(output)
    return name.rpartition("/")[2] if name.startswith("s3://") else name
