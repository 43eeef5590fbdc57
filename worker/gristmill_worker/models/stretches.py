"""Finds the layers of a model that can be run as programs, and neighbours that make one program.

No model is known by name. A module has a program when in a forward pass it does nothing but call
our kernels, attention among them, and add.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gristmill_worker.attention.base import AttentionMetadata
from gristmill_worker.models.narrow_program import NarrowProgram
from gristmill_worker.models.program import Calls, Program, read_calls
from gristmill_worker.models.terms import NoProgram, Part, StepSize, Trace
from gristmill_worker.models.trace import Began, Called, Ended, Event, traced
from gristmill_worker.native import Kernel, load_native

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("program.c")


@dataclass(frozen=True, slots=True)
class Argument:
    """Where a tensor stands among the arguments of a call."""

    name: int | str
    index: int | None = None  # in a tuple of tensors

    def of(self, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        value = args[self.name] if isinstance(self.name, int) else kwargs[self.name]
        tensor: torch.Tensor = value if self.index is None else value[self.index]
        return tensor


@dataclass(frozen=True, slots=True)
class Stretch:
    """Modules that are run as one program: the first runs it, the others hand its result on."""

    program: Program
    #: The same for some rows only, where it holds the model's last attention call.
    narrow: NarrowProgram | None
    first: nn.Module
    inputs: Sequence[Argument]
    #: Each of the others, and the argument that is the result of the one before.
    others: Sequence[tuple[nn.Module, Argument]]
    first_attention_call: int
    num_attention_calls: int
    output_width: int
    #: Length of the tuple that the module returns, of which only the first is a tensor; 0 where it
    #: returns the tensor itself.
    tuple_length: int


def find_stretches(
    model: nn.Module,
    attention: Kernel,
    cache_dir: Path,
    run_small_step: Callable[[int], AttentionMetadata],
) -> list[Stretch]:
    """What of the model can be run as programs; none where no C compiler is present.

    `run_small_step(n)` runs n + 1 Sequences, and no number of the two steps may be the same.
    """
    library = load_native(_SOURCE, cache_dir)
    if library is None:
        return []
    add = Kernel(library, "gristmill_add", "3Pq")
    finders: list[_Finder] = []
    for n in (1, 2):
        with traced(model, add) as events:
            metadata = run_small_step(n)
        finders.append(_Finder(Trace(events, _size(metadata)), attention))
    return list(_stretches(library, *finders))


def _size(metadata: AttentionMetadata) -> StepSize:
    num_spans, max_blocks = metadata.block_tables.shape
    return StepSize(
        len(metadata.slot_mapping),
        num_spans,
        max_blocks,
        metadata.slot_mapping.data_ptr(),
        metadata.spans.data_ptr(),
        metadata.block_tables.data_ptr(),
    )


def _stretches(library: CDLL, one: _Finder, other: _Finder) -> Iterator[Stretch]:
    """From the first event to the last: outer modules before inner ones, as many as make one."""
    calls = one.module_calls
    if [call.module for call in calls] != [call.module for call in other.module_calls]:
        return
    at = done = 0
    while at < len(calls):
        chain = one.chain(at) if calls[at].begin >= done else []
        for length in range(len(chain), 0, -1):
            try:
                stretch = _stretch(library, one, other, chain[:length])
            except NoProgram as reason:
                name = type(calls[at].module).__name__
                log.debug("no program module=%s length=%d reason=%s", name, length, reason)
            else:
                done = calls[chain[length - 1]].end
                yield stretch
                break
        at += 1


def _stretch(library: CDLL, one: _Finder, other: _Finder, chain: list[int]) -> Stretch:
    mine, inputs, tuple_length = one.part(chain)
    theirs, their_inputs, their_tuple_length = other.part(chain)
    if (inputs, tuple_length) != (their_inputs, their_tuple_length):
        raise NoProgram("it takes or gives something else in every step")
    num_attention_calls = one.num_attention_calls(mine.begin, mine.end)
    if not num_attention_calls:
        raise NoProgram("it calls no attention")
    calls = read_calls(mine, theirs)
    return Stretch(
        program=Program(library, calls),
        narrow=one.narrow(library, calls) if one.is_last_attention(mine.end) else None,
        first=one.module_calls[chain[0]].module,
        inputs=inputs,
        others=[one.hand_on(before, n) for before, n in itertools.pairwise(chain)],
        first_attention_call=one.num_attention_calls(0, mine.begin),
        num_attention_calls=num_attention_calls,
        output_width=mine.output.shape[2],
        tuple_length=tuple_length,
    )


@dataclass(frozen=True, slots=True)
class _ModuleCall:
    module: nn.Module
    begin: int
    end: int


class _Finder:
    """Knows which events of a trace belong to which module."""

    def __init__(self, trace: Trace, attention: Kernel) -> None:
        self._trace = trace
        self._attention = attention
        self.module_calls = _module_calls(trace.events)
        self._num_calls = Counter(call.module for call in self.module_calls)

    def num_attention_calls(self, begin: int, end: int) -> int:
        return sum(
            isinstance(event, Called) and event.kernel is self._attention
            for event in self._trace.events[begin:end]
        )

    def is_last_attention(self, end: int) -> bool:
        """Whether the model calls no attention behind event `end`."""
        return not self.num_attention_calls(end, len(self._trace.events))

    def narrow(self, library: CDLL, calls: Calls) -> NarrowProgram | None:
        try:
            return NarrowProgram(library, calls, self._attention)
        except NoProgram as reason:
            log.debug("all rows run to the end reason=%s", reason)
            return None

    def chain(self, at: int) -> list[int]:
        """This call and the calls behind it that need nothing but the one before, and what this
        one needs too."""
        chain = [at]
        try:
            known = {tensor.data_ptr() for tensor in self._inputs(at).values()}
            for n in range(at + 1, len(self.module_calls)):
                end = self.module_calls[chain[-1]].end
                if self.module_calls[n].begin < end:
                    continue
                output = self._output(chain[-1])
                needed = {tensor.data_ptr() for tensor in self._inputs(n).values()}
                is_next = self.module_calls[n].begin == end + 1 and isinstance(output, torch.Tensor)
                if not is_next or not needed <= known | {output.data_ptr()}:
                    break
                chain.append(n)
        except NoProgram:  # of the module behind; this one is looked at by itself
            pass
        return chain

    def part(self, chain: Sequence[int]) -> tuple[Part, list[Argument], int]:
        """The events of a chain of calls, where its inputs stand, and how long a tuple it gives."""
        begin, end = self.module_calls[chain[0]].begin, self.module_calls[chain[-1]].end
        inside = [c.module for c in self.module_calls if begin <= c.begin and c.end <= end]
        if any(self._num_calls[module] > 1 for module in inside):
            raise NoProgram("it is called more than once in a pass")
        output, tuple_length = self._output(chain[-1]), 0
        if len(chain) == 1 and isinstance(output, tuple) and set(output[1:]) <= {None}:
            output, tuple_length = output[0], len(output)
        inputs = self._inputs(chain[0])
        for tensor in (output, *inputs.values()):
            if not _is_packed(tensor, self._trace.size.num_tokens):
                raise NoProgram("it takes or gives something that is not a row for each token")
        if not inputs:
            raise NoProgram("it takes no tensor")
        part = Part(self._trace, begin, end, list(inputs.values()), output)
        return part, list(inputs), tuple_length

    def hand_on(self, before: int, n: int) -> tuple[nn.Module, Argument]:
        output = self._output(before)
        for argument, tensor in self._inputs(n).items():
            if tensor is output:
                return self.module_calls[n].module, argument
        raise NoProgram("it is not given the result of the one before")

    def _output(self, n: int) -> Any:
        ended = self._trace.events[self.module_calls[n].end]
        assert isinstance(ended, Ended), "a module's last event"
        return ended.output

    def _inputs(self, n: int) -> dict[Argument, torch.Tensor]:
        """The arguments that kernels read. Raises NoProgram where more than tensors and plain
        values are given: what is done with that, nobody sees."""
        call = self.module_calls[n]
        began = self._trace.events[call.begin]
        assert isinstance(began, Began), "a module's first event"
        read = {
            address
            for event in self._trace.events[call.begin : call.end]
            if isinstance(event, Called)
            for address in event.addresses
        }
        return {
            argument: tensor
            for argument, tensor in _tensors(began)
            if any(tensor.data_ptr() <= a < tensor.data_ptr() + tensor.nbytes for a in read)
        }


def _module_calls(events: Sequence[Event]) -> list[_ModuleCall]:
    open_calls: list[int] = []
    found: list[_ModuleCall] = []
    for n, event in enumerate(events):
        if isinstance(event, Began):
            open_calls.append(n)
        elif isinstance(event, Ended):
            found.append(_ModuleCall(event.module, open_calls.pop(), n))
    return sorted(found, key=lambda call: call.begin)


def _tensors(began: Began) -> Iterator[tuple[Argument, torch.Tensor]]:
    named: list[tuple[int | str, Any]] = [*enumerate(began.args), *began.kwargs.items()]
    for name, value in named:
        if isinstance(value, torch.Tensor):
            yield Argument(name), value
        elif isinstance(value, tuple | list) and all(isinstance(v, torch.Tensor) for v in value):
            for index, tensor in enumerate(value):
                yield Argument(name, index), tensor
        elif not isinstance(value, bool | int | float | str | None):
            raise NoProgram(f"it is given a {type(value).__name__}")


def _is_packed(value: object, num_tokens: int) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype is torch.float32
        and value.dim() == 3
        and value.shape[:2] == (1, num_tokens)
        and value.is_contiguous()
    )
