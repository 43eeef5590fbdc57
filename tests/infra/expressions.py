"""Takes an expression of PromQL apart, as far as names, labels and their values go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gristmill.metrics import METRICS, Kind, Metric

_SUFFIXES = {
    Kind.COUNTER: ("",),
    Kind.GAUGE: ("",),
    Kind.HISTOGRAM: ("_bucket", "_sum", "_count"),
}
#: What a sample is called by, and the metric that it belongs to.
SAMPLES: dict[str, Metric] = {
    metric.name + suffix: metric for metric in METRICS for suffix in _SUFFIXES[metric.kind]
}
#: Labels that Prometheus itself gives.
ITS_OWN = {"instance", "job"}
_SELECTOR = re.compile(r"(?<![\w$])([a-zA-Z_:][\w:]*gristmill_[\w:]*|gristmill_[\w:]+)(\{[^}]*\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_BY = re.compile(r"\b(?:by|on|ignoring|group_left)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Selector:
    name: str
    #: By label: what it is compared with.
    matchers: tuple[tuple[str, str], ...]

    @property
    def is_recorded(self) -> bool:
        return ":" in self.name

    @property
    def labels(self) -> set[str]:
        return {label for label, _ in self.matchers}


def selectors_of(expr: str) -> Iterator[Selector]:
    for name, braces in _SELECTOR.findall(expr):
        yield Selector(name, tuple((m[0], m[2]) for m in _MATCHER.findall(braces)))


def grouping_labels_of(expr: str) -> set[str]:
    lists = _BY.findall(expr)
    return {label.strip() for one in lists for label in one.split(",") if label.strip()}


def labels_of(name: str) -> set[str]:
    """That a sample may have."""
    metric = SAMPLES[name]
    extra = {"le"} if name.endswith("_bucket") and metric.kind is Kind.HISTOGRAM else set()
    return {*metric.labels, *ITS_OWN, *extra}


def words_of(value: str) -> list[str]:
    """The plain words of what a label is compared with; none of a pattern or a variable."""
    return [word for word in value.split("|") if re.fullmatch(r"[a-z_]+", word)]
