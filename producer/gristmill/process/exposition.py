"""GET /metrics: what a process has counted, in the forms that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING

from gristmill.errors import UsageError
from gristmill.metrics import Kind
from gristmill.telemetry.tally import Distribution, Series, Tally

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family


class Exposition:
    """Imports prometheus-client when somebody looks first: a worker's start does not wait for it.

    Raises UsageError where it is not installed.
    """

    def __init__(self, tally: Tally) -> None:
        if find_spec("prometheus_client") is None:
            raise UsageError(
                "Metrics need the package prometheus-client: pip install 'gristmill[server]' or "
                "'gristmill[worker]' brings it. With --health off none are told."
            )
        self._tally = tally

    def page(self, accept: str) -> tuple[str, bytes]:
        """Content type and body, in the newest form that `accept` names."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)

    @cached_property
    def _registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry()
        registry.register(self)
        # Memory, CPU time and open files of the process, under the names that all use.
        ProcessCollector(registry=registry)
        return registry

    def describe(self) -> list[Family]:
        """Nothing is asked for at the registration: what there is, is known when it is looked."""
        return []

    def collect(self) -> Iterator[Family]:
        """For the registry of prometheus-client."""
        for series in self._tally.look():
            if series.values:
                yield _family(series)


def _family(series: Series) -> Family:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    metric = series.metric
    if metric.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, found in sorted(series.values.items()):
            assert isinstance(found, Distribution), "a histogram has distributions"
            histogram.add_metric(labels, _buckets(metric.buckets, found), found.total)
        return histogram
    is_counter = metric.kind is Kind.COUNTER
    kind = CounterMetricFamily if is_counter else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(series.values.items()):
        assert isinstance(value, int | float), "all others have numbers"
        family.add_metric(labels, value)
    return family


def _buckets(bounds: tuple[float, ...], found: Distribution) -> list[tuple[str, float]]:
    """Cumulated, as Prometheus wants them."""
    names = [*map(str, bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(found.counts)), strict=True))
