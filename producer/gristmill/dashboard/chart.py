"""The geometry of the charts that the server draws itself. Pure functions, no colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 120


@dataclass(frozen=True, slots=True)
class Chart:
    """Steps of equal width: the paths of their line and of the area below, in WIDTH by HEIGHT."""

    line: str
    area: str
    top: float


def draw(values: Sequence[float]) -> Chart | None:
    """None where there is nothing to draw."""
    top = max(values, default=0.0)
    if top <= 0:
        return None
    width = WIDTH / len(values)
    line = [f"M0 {_y(values[0], top)}"]
    for i, value in enumerate(values):
        line.append(f"V{_y(value, top)}H{(i + 1) * width:.1f}")
    path = "".join(line)
    return Chart(path, f"{path}V{HEIGHT}H0Z", top)


def _y(value: float, top: float) -> str:
    # A little room, so that the line is not cut in half at the top.
    return f"{HEIGHT - 2 - value / top * (HEIGHT - 4):.1f}"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a whole: where it begins and how wide it is, in hundredths of the whole."""

    name: str
    value: float
    start: float
    width: float


def stretches(parts: Mapping[str, float]) -> list[Stretch]:
    """One behind the other, in their order; none where all are zero."""
    whole = sum(parts.values())
    if whole <= 0:
        return []
    found, start = [], 0.0
    for name, value in parts.items():
        width = 100 * value / whole
        found.append(Stretch(name, value, round(start, 2), round(width, 2)))
        start += width
    return found


@dataclass(frozen=True, slots=True)
class Bar:
    """Widths of a bar's pieces, in hundredths of it."""

    done: float
    failed: float


def bar(done: int, failed: int, total: int) -> Bar:
    if total <= 0:
        return Bar(0.0, 0.0)
    return Bar(round(100 * done / total, 2), round(100 * failed / total, 2))
