"""A program in two halves: all tokens up to the model's last attention call, and only the rows that
somebody asks about behind it.

Of most tokens of a prompt nothing is wanted but their keys and values, which are all there when the
last attention call is made. What comes behind it mixes no rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from ctypes import CDLL

import torch

from gristmill_worker.models.program import Calls, Operation, Program
from gristmill_worker.models.terms import SKIPPED, ZERO, NoProgram, Place, Term
from gristmill_worker.native import Kernel

#: Field of an attention call (attention/kernel.c).
_SKIPPED = 9


class NarrowProgram:
    """The same calls as a Program's, the last of them for fewer rows. `scratch_bytes` is what they
    take for one token."""

    def __init__(self, library: CDLL, calls: Calls, attention: Kernel) -> None:
        """`calls` hold the model's last attention call. Raises NoProgram."""
        operations = calls.operations
        last = max(n for n, one in enumerate(operations) if one.kernel is attention)
        fields = list(operations[last].terms)
        fields[_SKIPPED] = Term(SKIPPED)
        first = [*operations[:last], Operation(attention, fields)]
        rest = operations[last + 1 :]
        made = _pieces(first)
        if calls.output in made:
            raise NoProgram("its output is not made behind its last attention call")
        if any(term.value != ZERO for one in rest for term in one.terms):
            raise NoProgram("what it does behind its last attention call depends on the step")
        self._handed_on = sorted(made & _pieces(rest))
        self._row_bytes = [calls.row_bytes[piece] for piece in self._handed_on]
        kept = frozenset(self._handed_on)
        self._first = Program(
            library, Calls(first, calls.num_inputs, calls.row_bytes, output=None, kept=kept)
        )
        places = {piece: calls.num_inputs + n for n, piece in enumerate(self._handed_on)}
        rest = [Operation(one.kernel, [_as_input(t, places) for t in one.terms]) for one in rest]
        num_inputs = calls.num_inputs + len(places)
        self._rest = Program(library, Calls(rest, num_inputs, calls.row_bytes, calls.output))
        self.scratch_bytes = max(self._first.scratch_bytes, self._rest.scratch_bytes)

    def run(
        self,
        step: Sequence[int],
        inputs: Sequence[torch.Tensor],  # [1, T, width] each
        wanted: torch.Tensor,  # [R] int64
        *,
        scratch: torch.Tensor,  # [T * scratch_bytes] uint8, or more
        output: torch.Tensor,  # [1, R, width]
    ) -> None:
        """`step` are the values that terms.py names from NUM_SPANS to SCRATCH."""
        num_tokens = inputs[0].shape[1]
        self._first.run(num_tokens, (*step, 0, *(tensor.data_ptr() for tensor in inputs)))
        rows = [tensor.index_select(1, wanted) for tensor in inputs]
        for piece, row_bytes in zip(self._handed_on, self._row_bytes, strict=True):
            begin = self._first.begins[piece] * num_tokens
            made = scratch[begin : begin + num_tokens * row_bytes].view(num_tokens, row_bytes)
            rows.append(made.index_select(0, wanted))
        addresses = [tensor.data_ptr() for tensor in (output, *rows)]
        self._rest.run(len(wanted), (*step, *addresses))


def num_skipped(
    spans: torch.Tensor,  # [S, 3] int64, see AttentionMetadata
    wanted: torch.Tensor,  # [R] int64, ascending
) -> torch.Tensor:  # [S] int64
    """How many tokens of each span come before the first that is wanted."""
    rows: list[int] = wanted.tolist()
    found: list[int] = []
    for start, num_tokens, _ in spans.tolist():
        at, end = bisect_left(rows, start), start + num_tokens
        found.append((rows[at] if at < len(rows) and rows[at] < end else end) - start)
    return torch.tensor(found)


def _pieces(operations: Iterable[Operation]) -> set[int]:
    return {piece for operation in operations for piece in operation.pieces()}


def _as_input(term: Term, places: dict[int, int]) -> Term:
    place = term.place
    if place is None or place.is_input or place.number not in places:
        return term
    return Term(ZERO, place=Place(True, places[place.number], place.offset))
