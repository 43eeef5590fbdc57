"""Spans through OpenTelemetry to a collector, over OTLP/HTTP, as the OTEL_* variables say."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gristmill.errors import UsageError
from gristmill.telemetry.traces import NO_FACTS, NO_SPAN, Fact, Facts, Span

_PREFIX = "gristmill."
_KINDS = {
    "dispatch": SpanKind.PRODUCER,
    "attempt": SpanKind.CONSUMER,
    "webhook": SpanKind.CLIENT,
}
_propagator = TraceContextTextMapPropagator()


class OtelTracer:
    """A Tracer with a provider of its own; the process's global one is left alone.

    Raises UsageError without the SDK, or for settings that it does not take.
    """

    is_on = True

    def __init__(self, process: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError as error:
            raise UsageError(
                "OTEL_EXPORTER_OTLP_ENDPOINT asks for traces, which need OpenTelemetry's SDK: pip "
                "install 'gristmill[traces]', or unset it."
            ) from error
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over this.
        own = {
            "service.name": f"gristmill-{process}",
            "service.version": version("gristmill"),
        }
        try:
            asked = OTELResourceDetector().detect().attributes
            self.provider = TracerProvider(resource=Resource.create({**own, **asked}))
            self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except (ValueError, TypeError) as error:
            raise UsageError(f"The OTEL_* variables cannot be followed: {error}") from error
        self._tracer = self.provider.get_tracer("gristmill", version("gristmill"))

    def start(
        self, name: str, parent: str, *, facts: Facts = NO_FACTS, at: float | None = None
    ) -> Span:
        if not is_sampled(parent):
            return NO_SPAN
        span = self._tracer.start_span(
            name,
            context=_context_of(parent),
            kind=_KINDS.get(name, SpanKind.INTERNAL),
            attributes=_attributes(facts),
            start_time=_ns(at),
        )
        return _OtelSpan(span)

    def current(self) -> str:
        context = trace.get_current_span().get_span_context()
        return _traceparent(context) if context.is_valid and context.trace_flags.sampled else ""

    def close(self) -> None:
        """Send what was not sent yet, within the exporter's time limit."""
        self.provider.shutdown()


class _OtelSpan:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        return _traceparent(self._span.get_span_context())

    def tell(self, **facts: Fact) -> None:
        self._span.set_attributes(_attributes(facts))

    def end(self, *, at: float | None = None, error: str = "") -> None:
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(_ns(at))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Its kind only: the text of an error may quote what a caller wrote.
        self.end(error="" if kind is None else kind.__name__)


@lru_cache(maxsize=256)
def _context_of(traceparent: str) -> Context:
    """Many spans hang on one: the rows of an Attempt, all that is done for a batch."""
    return _propagator.extract({"traceparent": traceparent})


def is_sampled(traceparent: str) -> bool:
    """Whether spans that hang on it are wanted: its last two hex digits are flags."""
    try:
        return len(traceparent) == 55 and bool(int(traceparent[53:], 16) & 1)
    except ValueError:
        return False


def _traceparent(context: trace.SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _attributes(facts: Facts) -> Facts:
    return {_PREFIX + name: value for name, value in facts.items()}


def _ns(at: float | None) -> int | None:
    return None if at is None else int(at * 1e9)
