"""Makes one program for program.c of the kernel calls that a part of a model is seen to make.

The same part is traced in two steps of different sizes. What is equal in both is constant; what is
not must grow with the step's tokens or Sequences, or lie in memory that was made on the way. A part
that does anything else, or whose inner memory is read by others, has no program.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ctypes import CDLL, addressof, create_string_buffer, memmove
from dataclasses import dataclass

from gristmill_worker.models.terms import (
    FIRST_INPUT,
    OUTPUT,
    SCRATCH,
    ZERO,
    Memory,
    NoProgram,
    Part,
    Term,
    read_term,
)
from gristmill_worker.models.trace import Called, Other
from gristmill_worker.native import Kernel

_LINE = 64
#: Fields of a product (product.c) and of a sum (program.c).
_RESIDUAL, _Y, _NUM_COLUMNS, _Y_STRIDE, _RESIDUAL_STRIDE = 3, 4, 6, 9, 10
_SUM, _COUNT = 2, 3


@dataclass(slots=True)
class Operation:
    """A call of a kernel, and what its fields are made of."""

    kernel: Kernel
    terms: list[Term]

    def pieces(self) -> set[int]:
        """The pieces of memory that it reads or writes."""
        places = [term.place for term in self.terms if term.place is not None]
        return {place.number for place in places if not place.is_input}


@dataclass(frozen=True, slots=True)
class Calls:
    """What a part does with how many inputs. `row_bytes` is the size of each piece of memory for
    one token, `output` the piece that is asked for; of what else is `kept` the memory is used for
    nothing else."""

    operations: Sequence[Operation]
    num_inputs: int
    row_bytes: Sequence[int]
    output: int | None
    kept: frozenset[int] = frozenset()


def read_calls(one: Part, other: Part) -> Calls:
    """The calls of a part that was traced twice. Raises NoProgram."""
    calls = _calls(one), _calls(other)
    if [call.kernel for call in calls[0]] != [call.kernel for call in calls[1]]:
        raise NoProgram("it does not make the same calls in every step")
    memories = Memory(one), Memory(other)
    row_bytes = memories[0].row_bytes()
    if row_bytes != memories[1].row_bytes():
        raise NoProgram("its memory does not grow with the tokens")
    output = memories[0].number_of_output()
    if output != memories[1].number_of_output():
        raise NoProgram("its output is made in another way in every step")
    operations = [
        Operation(a.kernel, [read_term(a, b, n, memories) for n in range(len(a.values))])
        for a, b in zip(*calls, strict=True)
    ]
    operations = _with_sums_in_products(operations, output)
    return Calls(operations, len(one.inputs), row_bytes, output)


def _calls(part: Part) -> list[Called]:
    calls: list[Called] = []
    for event in part.inner_events():
        if isinstance(event, Other):
            raise NoProgram(f"it calls {event.name}")
        if isinstance(event, Called):
            calls.append(event)
    return calls


def _with_sums_in_products(operations: Sequence[Operation], output: int) -> list[Operation]:
    """A sum of a product, which nobody else reads, and something else becomes a part of the
    product: the same addition, and a pass over memory less."""
    found: list[Operation] = []
    for n, operation in enumerate(operations):
        before = found[-1] if found else operation
        summand = _summand(before, operation, operations[n + 1 :], output)
        if summand is None:
            found.append(operation)
            continue
        before.terms[_RESIDUAL], before.terms[_Y] = summand, operation.terms[_SUM]
        before.terms[_RESIDUAL_STRIDE] = before.terms[_NUM_COLUMNS]
    return found


def _summand(
    product: Operation, total: Operation, later: Sequence[Operation], output: int
) -> Term | None:
    """What is added to a product that has no residual yet and is needed for this sum only."""
    if (product.kernel.name, total.kernel.name) != ("gristmill_multiply", "gristmill_add"):
        return None
    needed = {output}.union(*(operation.pieces() for operation in later))
    y, width = product.terms[_Y], product.terms[_NUM_COLUMNS]
    summands = [term for term in total.terms[:_SUM] if term != y]
    is_fit = (
        len(summands) == 1
        and y.place is not None
        and y.place.number not in needed
        and product.terms[_RESIDUAL] == Term(ZERO)
        and product.terms[_Y_STRIDE] == width
        and total.terms[_COUNT] == Term(ZERO, factor=int(width.offset))
    )
    return summands[0] if is_fit else None


class Program:
    """Calls of kernels in memory, ready to be run for any number of tokens.

    `scratch_bytes` is what all but the output takes for one token, and `begins` where each piece of
    it begins.
    """

    def __init__(self, library: CDLL, calls: Calls) -> None:
        """For the library of program.c."""
        operations, output = calls.operations, calls.output
        num_values = FIRST_INPUT + calls.num_inputs
        self._run = Kernel(library, "gristmill_run", f"2P{3 + num_values}q")
        self.begins = begins = _lay_out(calls)
        self.scratch_bytes = max(
            (begin + calls.row_bytes[piece] for piece, begin in begins.items()), default=0
        )
        structs, starts, changes = bytearray(), [], []
        for operation in operations:
            structs += bytes(-len(structs) % _LINE)
            starts.append(len(structs))
            for n, term in enumerate(operation.terms):
                if term.is_changing:
                    where = len(structs) + 8 * n  # all fields before the floats have 8 bytes
                    changes.append((where, *_change(term, begins, output)))
            structs += operation.kernel.pack([term.offset for term in operation.terms])
        structs += bytes(-len(structs) % _LINE)
        num_bytes = len(structs) + 16 * len(starts) + 32 * len(changes)
        self._memory = create_string_buffer(num_bytes)
        base = addressof(self._memory)
        tables = [
            struct.pack("2q", operation.kernel.address, base + start)
            for operation, start in zip(operations, starts, strict=True)
        ]
        tables += [struct.pack("4q", base + where, *change) for where, *change in changes]
        memmove(self._memory, bytes(structs) + b"".join(tables), num_bytes)
        first = base + len(structs)
        self._head = (first, first + 16 * len(starts), len(starts), len(changes))

    def run(self, num_tokens: int, values: Sequence[int]) -> None:
        """`values` are those that terms.py names after ZERO, and the addresses of the inputs."""
        self._run(*self._head, num_tokens, 0, *values)


def _lay_out(calls: Calls) -> dict[int, int]:
    """Where each piece begins, for one token. Pieces that are not needed at once may share."""
    lives: dict[int, tuple[int, int]] = {}
    for n, operation in enumerate(calls.operations):
        for piece in operation.pieces() - {calls.output}:
            last = len(calls.operations) if piece in calls.kept else n
            lives[piece] = (lives.get(piece, (n, n))[0], last)
    placed: dict[int, tuple[int, int]] = {}
    for piece, (first, last) in lives.items():
        size = -(-calls.row_bytes[piece] // _LINE) * _LINE
        begin = 0
        for other, (their_begin, their_end) in sorted(placed.items(), key=lambda item: item[1]):
            are_alive_together = lives[other][0] <= last and first <= lives[other][1]
            if are_alive_together and their_begin < begin + size and begin < their_end:
                begin = their_end
        placed[piece] = (begin, begin + size)
    return {piece: begin for piece, (begin, _) in placed.items()}


def _change(term: Term, begins: dict[int, int], output: int | None) -> tuple[int, int, int]:
    """value, factor and offset of a field that the step decides."""
    place = term.place
    if place is None:
        return (term.value, term.factor, int(term.offset))
    if place.is_input:
        return (FIRST_INPUT + place.number, 0, place.offset)
    if place.number == output:
        return (OUTPUT, 0, place.offset)
    return (SCRATCH, begins[place.number], place.offset)
