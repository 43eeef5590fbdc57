"""Draws what policies did in a scenario: rows/s, waits, rows done over time. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.errors import UsageError
from gristmill.simulator.figures import INTERVAL_S
from gristmill.simulator.report import Outcome

_COLOURS = {
    "fifo": "#8a94a0",
    "fifo-mixed": "#c3c9cf",
    "one-lane": "#5b7fa6",
    "router": "#b8561b",
}
_DPI = 100


def draw_policies(outcomes: Sequence[Outcome], path: Path) -> None:
    """One scenario: bars of rows/s and p95 wait, and how many rows were done when."""
    figure, panels = _panels(3, width=10.5, height=2.9)
    names = [outcome.figures.policy for outcome in outcomes]
    colours = [_COLOURS.get(name, "#444444") for name in names]
    rates = [outcome.figures.rows_per_s for outcome in outcomes]
    waits = [outcome.figures.wait_p95_s for outcome in outcomes]
    for panel, values, title in (
        (panels[0], rates, "rows per second"),
        (panels[1], waits, "wait, 95th percentile (s)"),
    ):
        bars = panel.barh(names[::-1], values[::-1], color=colours[::-1])
        panel.bar_label(bars, fmt="{:,.4g}", padding=3, fontsize=8)
        panel.margins(x=0.18)
        panel.set_title(title, fontsize=9)
    for outcome, colour in zip(outcomes, colours, strict=True):
        done, total = [], 0
        for num_rows in outcome.course:
            total += num_rows
            done.append(total)
        minutes = [(i + 1) * INTERVAL_S / 60 for i in range(len(done))]
        panels[2].plot(minutes, done, color=colour, label=outcome.figures.policy)
    panels[2].set_title("rows done, by minutes", fontsize=9)
    panels[2].legend(fontsize=7, frameon=False)
    figure.suptitle(outcomes[0].figures.scenario, fontsize=10)
    figure.savefig(path, dpi=_DPI)


def draw_lines(
    series: Mapping[str, Sequence[tuple[float, float]]], path: Path, *, title: str, x: str, y: str
) -> None:
    """Lines over a logarithmic x, each with its name."""
    figure, (panel,) = _panels(1, width=5.2, height=3.2)
    for name, points in series.items():
        panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_xlabel(x, fontsize=8)
    panel.set_ylabel(y, fontsize=8)
    panel.set_title(title, fontsize=9)
    panel.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=_DPI)


def _panels(number: int, *, width: float, height: float) -> tuple[Any, Any]:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise UsageError(
            "Plots need matplotlib: pip install 'gristmill[data]' brings it. Without --output "
            "there are tables only."
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, number, figsize=(width, height), squeeze=False, layout="constrained"
    )
    figure.patch.set_facecolor("white")
    for panel in panels[0]:
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels[0]
