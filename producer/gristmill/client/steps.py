"""What the client's logic asks of a transport. The logic is generators of Steps, without any I/O.

Retries, paging, resuming and waiting are written once, as generators that yield what shall be done
and are sent what came of it. `drive.py` runs them, over a blocking and over an async HTTP client.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

#: Seconds, or one value for each phase; None waits for ever.
TimeoutTypes: TypeAlias = "float | httpx2.Timeout | None"


class Body(Protocol):
    """A body too large for memory, which can be read again for another try."""

    @property
    def num_bytes(self) -> int: ...

    def chunks(self) -> Iterator[bytes]:
        """All of it, from the start."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    query: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Body | None = field(default=None, repr=False)
    timeout: TimeoutTypes = None
    max_retries: int = 0
    #: Whether a second try does no harm where the first one was done and its reply was lost.
    is_repeatable: bool = True

    def with_headers(self, **headers: str) -> Request:
        """The same with these headers more; `_` in a name stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **named})


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. Names of headers are in lower case; `stream` is there for a Fetch only."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    stream: Any = field(default=None, repr=False)

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")


@dataclass(frozen=True, slots=True)
class Send:
    """Gives the Reply with its whole body. Throws APIConnectionError."""

    request: Request


@dataclass(frozen=True, slots=True)
class Fetch:
    """Gives the Reply as soon as its head is there. The body of an error is read whole."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Gives the next piece of a stream, b"" at its end. Throws APIConnectionError."""

    stream: Any


@dataclass(frozen=True, slots=True)
class Close:
    """A stream is not read on. Streams of a generator that ends are closed anyway."""

    stream: Any


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Gives what the function returns; it blocks, so an async transport calls it in a thread."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One value for whoever iterates."""

    value: T


Step: TypeAlias = Send | Fetch | Read | Close | Sleep | Work | Item[Any]
#: Logic that returns a T in the end, and may give Items on its way.
Steps: TypeAlias = Generator[Step, Any, T]


class Pump(Generic[T]):
    """Feeds a generator of Steps: the part that both transports share."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._answer: object = None
        self._error: BaseException | None = None
        self.result: T | None = None

    def advance(self) -> Step | None:
        """The next Step; None when the generator has returned, and `result` is there."""
        answer, error = self._answer, self._error
        self._answer = self._error = None
        try:
            if error is not None:
                return self._steps.throw(error)
            return self._steps.send(answer)
        except StopIteration as stop:
            self.result = stop.value
            return None

    def answer(self, value: object) -> None:
        self._answer = value

    def fail(self, error: BaseException) -> None:
        self._error = error

    def close(self) -> None:
        self._steps.close()
