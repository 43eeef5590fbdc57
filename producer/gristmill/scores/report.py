"""The report of a scored data set: what was asked, the figures, and both as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.scores.figures import Figure, Findings

#: One table: its title, its head, its lines.
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Report:
    """`asked` and `computed` are words for people: the task's settings, and what a receipt says of
    the model. `failed` counts rows without a score by the code of their error."""

    task: str
    model: str
    data: str
    asked: Mapping[str, str]
    computed: Mapping[str, str]
    num_rows: int
    findings: Findings
    failed: Mapping[str, int]
    num_resamples: int
    seed: int

    @property
    def num_failed(self) -> int:
        return sum(self.failed.values())

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures by name."""
        return {figure.name: figure for figure in self.findings.figures}

    @property
    def title(self) -> str:
        return f"{self.data} scored by {self.model}: {self.task}"

    def document(self) -> dict[str, Any]:
        """All of it as one JSON document."""
        return asdict(self)

    def tables(self) -> list[Table]:
        """All that the report says, in order."""
        return [self._rows(), self._figures(), *self._calibration(), *self._confusion()]

    def _rows(self) -> Table:
        counts = [
            ("rows", f"{self.num_rows:,}"),
            ("scored", f"{self.num_rows - self.num_failed:,}"),
            *((f"failed: {code}", f"{count:,}") for code, count in sorted(self.failed.items())),
        ]
        return "What was scored", ("", ""), [*self.asked.items(), *self.computed.items(), *counts]

    def _figures(self) -> Table:
        lines = [
            (one.name, number(one.value), f"{number(one.low)} to {number(one.high)}")
            for one in self.findings.figures
        ]
        return "Figures", ("figure", "value", "95 % interval"), lines

    def _calibration(self) -> list[Table]:
        if not self.findings.reliability:
            return []
        lines = [
            (
                f"{one.low:.1f} to {one.high:.1f}",
                f"{one.num_rows:,}",
                number(one.confidence),
                number(one.accuracy),
            )
            for one in self.findings.reliability
        ]
        return [("Calibration", ("confidence", "rows", "mean confidence", "right"), lines)]

    def _confusion(self) -> list[Table]:
        found = self.findings.confusion
        if found is None:
            return []
        lines = [
            (gold, *(f"{count:,}" for count in counts))
            for gold, counts in zip(found.labels, found.counts, strict=True)
        ]
        shares = zip(found.labels, found.precision, found.recall, found.f1, strict=True)
        return [
            ("Confusion", ("right answer \\ prediction", *found.labels), lines),
            (
                "By answer",
                ("answer", "precision", "recall", "F1"),
                [(label, *map(number, values)) for label, *values in shares],
            ),
        ]

    def note(self) -> str:
        """What the intervals are."""
        return (
            f"Intervals hold the figure in 95 % of {self.num_resamples:,} samples of the scored "
            f"rows, drawn with replacement (seed {self.seed})."
        )


def number(value: float | None) -> str:
    """Four digits that count; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def markdown(report: Report, *, plot: str | None) -> str:
    """`plot` is where the reliability plot lies, as seen from the report."""
    parts = [f"# {_escaped(report.title)}"]
    for title, head, lines in report.tables():
        parts.append(f"## {title}")
        rows = [head, ["---"] * len(head), *lines]
        parts.append("\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in rows))
        if title == "Figures" and report.num_resamples:
            parts.append(report.note())
        if title == "Calibration" and plot is not None:
            parts.append(f"![Reliability: how often answers are right, by confidence]({plot})")
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """Text that stays in its cell, and is text."""
    flat = " ".join(text.replace("\n", "\u23ce").split("\r"))
    for char in "\\`*_{}[]<>#|":
        flat = flat.replace(char, f"\\{char}")
    return flat
