"""Spans as far as control side, API and Worker know them; OpenTelemetry is behind this.

A span hangs on a `traceparent` (W3C Trace Context), which is text and travels in the Ledger, in
batch.json and in the message that points to a Shard. No span has a prompt, an answer or a
custom_id.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

#: What is told of a span: numbers, ids that the service made, closed sets of words.
Fact = str | int | float | bool
Facts = Mapping[str, Fact]
NO_FACTS: Facts = {}


class Span(Protocol):
    """One piece of work. Left by an exception, it has failed."""

    @property
    def traceparent(self) -> str:
        """What spans inside of it hang on; empty where nobody traces."""

    def tell(self, **facts: Fact) -> None:
        """More about it."""

    def end(self, *, at: float | None = None, error: str = "") -> None:
        """It is over, at a Unix time or just now; `error` names in a word why it failed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Tracer(Protocol):
    """Any thread may call any method."""

    @property
    def is_on(self) -> bool: ...

    @property
    def provider(self) -> Any:
        """The TracerProvider of OpenTelemetry, for libraries that trace by themselves, or None."""

    def start(
        self, name: str, parent: str, *, facts: Facts = NO_FACTS, at: float | None = None
    ) -> Span:
        """A span that hangs on `parent`; without one it is nobody's, and not told.

        It has begun at a Unix time, or just now.
        """

    def current(self) -> str:
        """The `traceparent` of the HTTP request that is just being answered; else empty."""


class _NoSpan:
    traceparent = ""

    def tell(self, **facts: Fact) -> None:
        pass

    def end(self, *, at: float | None = None, error: str = "") -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


NO_SPAN: Span = _NoSpan()


class _NoTracer:
    is_on = False
    provider = None

    def start(
        self, name: str, parent: str, *, facts: Facts = NO_FACTS, at: float | None = None
    ) -> Span:
        return NO_SPAN

    def current(self) -> str:
        return ""


NO_TRACER: Tracer = _NoTracer()
