"""Draws what batching.py measured: generated tokens per second, one panel for each workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: Ours, and all others.
_COLOURS = "#b8561b", "#8a94a0"


def draw(medians: Mapping[str, Mapping[str, float]], *, first: str, path: Path) -> None:
    """`medians[workload][engine]` in tokens/s; engines whose name begins with `first` stand out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    most = max(len(engines) for engines in medians.values())
    figure, panels = pyplot.subplots(
        1,
        len(medians),
        figsize=(4.2 * len(medians), 1 + 0.34 * most),
        squeeze=False,
        layout="constrained",
    )
    for panel, (workload, engines) in zip(panels[0], medians.items(), strict=True):
        names = sorted(engines, key=lambda name: engines[name])
        bars = panel.barh(
            names,
            [engines[name] for name in names],
            color=[_COLOURS[not name.startswith(first)] for name in names],
        )
        panel.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
        panel.set_title(f"{workload}: generated tokens per second", fontsize=10)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.15)
    figure.savefig(path, dpi=110)
