"""What a process tells of itself, as its command line and environment ask: nothing by itself.

Metrics are told where health is; traces go to a collector that the OTEL_* variables name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from gristmill.metrics import Process
from gristmill.process.health import Health, health_served, parse_address
from gristmill.telemetry import NO_METRICS, NO_TRACER, Tally, Telemetry

if TYPE_CHECKING:
    from gristmill.process.otel import OtelTracer

#: What Health calls a state, and what a Worker does.
_STATES = {"loading": "loading", "running": "ready", "draining": "draining"}


class ProcessTelemetry:
    """Made first, so that all parts of the process can be given it.

    Raises UsageError when something that is asked for cannot be told.
    """

    def __init__(self, name: str, *processes: Process, health: str) -> None:
        self._name = name
        self._health = health
        self._tally = None if parse_address(health) is None else Tally(*processes)
        self._tracer = _tracer_of_environment(name)
        self.telemetry = Telemetry(self._tally or NO_METRICS, self._tracer or NO_TRACER)

    @contextmanager
    def told(self, read: Callable[[], Health]) -> Iterator[None]:
        """While entered, health and metrics are answered; at the end the last spans are sent."""
        page = None
        if self._tally is not None:
            from gristmill.process.exposition import Exposition

            self._tally.put("gristmill_build_info", (self._name, version("gristmill")), value=1.0)
            self._tally.on_look(lambda: self._put_troubles(read()))
            page = Exposition(self._tally).page
        try:
            with health_served(self._health, read, page):
                yield
        finally:
            if self._tracer is not None:
                self._tracer.close()

    def tell_worker(
        self, model: str, read: Callable[[], Health], *, price_per_hour: float | None, currency: str
    ) -> None:
        """From now on a worker of this model is in this process; what it costs counts from now."""
        metrics = self.telemetry.metrics
        began = time.monotonic()

        def put() -> None:
            state = _STATES.get(read().state, "draining")
            for one in _STATES.values():
                value = 1.0 if one == state else 0.0
                metrics.put("gristmill_worker_state", (model, one), value=value)
            if price_per_hour is not None:
                cost = price_per_hour * (time.monotonic() - began) / 3600
                metrics.put("gristmill_machine_cost_total", (model, currency), value=cost)

        metrics.on_look(put)

    def _put_troubles(self, health: Health) -> None:
        self.telemetry.metrics.put(
            "gristmill_troubles", (self._name,), value=float(len(health.troubles))
        )


def _tracer_of_environment(name: str) -> OtelTracer | None:
    """None unless a collector is named and tracing is not switched off."""
    wanted = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not wanted or is_off or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    from gristmill.process.otel import OtelTracer

    return OtelTracer(name)
