"""The reliability plot: how often answers are right, by how sure the model was (a PNG)."""

from __future__ import annotations

import io
from collections.abc import Sequence

from gristmill.scores.calibration import Bin

_OURS, _GREY = "#b8561b", "#8a94a0"


def reliability_plot(bins: Sequence[Bin]) -> bytes:
    """A PNG. Needs matplotlib."""
    from matplotlib.figure import Figure

    # A figure of its own: pyplot's are the whole process's.
    figure = Figure(figsize=(4.6, 4.8), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    middles = [(one.low + one.high) / 2 for one in bins]
    width = bins[0].high - bins[0].low
    top.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle="--", label="as sure as right")
    top.bar(
        middles,
        [one.accuracy or 0.0 for one in bins],
        width=width,
        color=_OURS,
        edgecolor="white",
        label="right",
    )
    seen = [one for one in bins if one.confidence is not None]
    top.plot(
        [one.confidence for one in seen],
        [one.accuracy for one in seen],
        color="black",
        marker="o",
        markersize=3,
        linewidth=0,
        label="mean of a bin",
    )
    top.set(xlim=(0, 1), ylim=(0, 1), ylabel="share of right answers")
    top.legend(fontsize=8, loc="upper left", frameon=False)
    bottom.bar(middles, [one.num_rows for one in bins], width=width, color=_GREY, edgecolor="white")
    bottom.set(xlabel="confidence", ylabel="rows")
    for panel in (top, bottom):
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    picture = io.BytesIO()
    # Without the version of matplotlib inside, the same rows are the same picture.
    figure.savefig(picture, format="png", dpi=130, metadata={"Software": None})
    return picture.getvalue()
