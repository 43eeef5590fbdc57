"""What the fields of a kernel call are made of, found by comparing two steps of different sizes."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gristmill_worker.models.trace import Called, Event, Made, Other

#: What a step tells a program, in this order; behind them the addresses of the part's inputs.
ZERO, NUM_SPANS, MAX_BLOCKS, SLOTS, SPANS, TABLES, SKIPPED, SCRATCH, OUTPUT, FIRST_INPUT = range(10)


class NoProgram(Exception):
    """A part does something that a program cannot repeat."""


@dataclass(frozen=True, slots=True)
class StepSize:
    """Numbers of the step that was traced, and where its metadata lies."""

    num_tokens: int
    num_spans: int
    max_blocks: int
    slots: int
    spans: int
    tables: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of one forward pass."""

    events: Sequence[Event]
    size: StepSize


@dataclass(frozen=True, slots=True)
class Part:
    """Events [begin, end) of a trace, the tensors that they start from, and the one they make."""

    trace: Trace
    begin: int
    end: int
    inputs: Sequence[torch.Tensor]
    output: torch.Tensor

    def inner_events(self) -> Sequence[Event]:
        return self.trace.events[self.begin : self.end]


@dataclass(frozen=True, slots=True)
class Place:
    """An address: in a piece of memory that the part makes (by number), or in an input."""

    is_input: bool
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Term:
    """values[value] + factor * num_tokens + offset, or a place in memory."""

    value: int
    factor: int = 0
    offset: float = 0
    place: Place | None = None

    @property
    def is_changing(self) -> bool:
        return self.value != ZERO or self.factor != 0 or self.place is not None


class Memory:
    """Tells what an address within a part is."""

    def __init__(self, part: Part) -> None:
        self.size = part.trace.size
        self._part = part
        self._inner = [event for event in part.inner_events() if isinstance(event, Made)]
        self._numbers = {event.begin: n for n, event in enumerate(self._inner)}
        made = sorted((e.begin, e.num_bytes) for e in part.trace.events if isinstance(e, Made))
        self._begins = [begin for begin, _ in made]
        self._ends = [begin + num_bytes for begin, num_bytes in made]

    def place(self, address: int) -> Place | None:
        """None of what was there before the pass. Raises NoProgram for what others made in it."""
        for n, tensor in enumerate(self._part.inputs):
            if tensor.data_ptr() <= address < tensor.data_ptr() + tensor.nbytes:
                return Place(True, n, address - tensor.data_ptr())
        begin = self._begin_of(address)
        if begin is None:
            return None
        if begin not in self._numbers:
            raise NoProgram("it reads what was made outside of it")
        return Place(False, self._numbers[begin], address - begin)

    def _begin_of(self, address: int) -> int | None:
        """Of the piece of memory, made in this pass, in which the address lies."""
        at = bisect.bisect_right(self._begins, address) - 1
        return self._begins[at] if at >= 0 and address < self._ends[at] else None

    def row_bytes(self) -> list[int]:
        """The bytes of each piece of memory for one token."""
        sizes = [divmod(event.num_bytes, self.size.num_tokens) for event in self._inner]
        if any(rest for _, rest in sizes):
            raise NoProgram("its memory does not grow with the tokens")
        return [each for each, _ in sizes]

    def number_of_output(self) -> int:
        """Of the one piece that may be read by what comes after."""
        output = self.place(self._part.output.data_ptr())
        if output is None or output.is_input or output.offset:
            raise NoProgram("its output is not made by it")
        for event in self._part.trace.events[self._part.end :]:
            for address in event.addresses if isinstance(event, Called | Other) else ():
                begin = self._begin_of(address)
                if begin is not None and self._numbers.get(begin, output.number) != output.number:
                    raise NoProgram("what it makes on the way is read by others")
        return output.number


def read_term(one: Called, other: Called, field: int, memories: tuple[Memory, Memory]) -> Term:
    """What a field is of that has one value in one step and another in the other. Raises NoProgram
    where that cannot be told."""
    a, b = one.values[field], other.values[field]
    num_pointers = one.kernel.num_pointers
    if field < num_pointers:
        return _read_address(int(a), int(b), memories)
    if a == b:
        return Term(ZERO, offset=a)
    if field < num_pointers + one.kernel.num_integers:
        return _read_number(int(a), int(b), memories[0].size, memories[1].size)
    raise NoProgram("a factor depends on the step")


def _read_address(a: int, b: int, memories: tuple[Memory, Memory]) -> Term:
    one, other = (memory.size for memory in memories)
    for value, pair in (
        (SLOTS, (one.slots, other.slots)),
        (SPANS, (one.spans, other.spans)),
        (TABLES, (one.tables, other.tables)),
    ):
        if (a, b) == pair:
            return Term(value)
    place = memories[0].place(a)
    if place != memories[1].place(b) or (place is None and a != b):
        raise NoProgram("it reads other memory in every step")
    return Term(ZERO, offset=a) if place is None else Term(ZERO, place=place)


def _read_number(a: int, b: int, one: StepSize, other: StepSize) -> Term:
    factor, rest = divmod(a, one.num_tokens)
    if not rest and b == factor * other.num_tokens:
        return Term(ZERO, factor=factor)
    for value, pair in (
        (NUM_SPANS, (one.num_spans, other.num_spans)),
        (MAX_BLOCKS, (one.max_blocks, other.max_blocks)),
    ):
        if (a, b) == pair:
            return Term(value)
    raise NoProgram("a number depends on the step in a way of its own")
