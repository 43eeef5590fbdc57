"""The work of a simulated fleet: batches whose rows follow from a seed, window by window.

Rows are drawn when they are read and again by nobody: a batch of millions costs as much memory as
its newest window.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

#: Rows that ingest reads at once (requests/prepare.py): Shards are cut within a window.
WINDOW_ROWS = 2048
#: Output tokens that ingest expects of a row at most, when it cuts Shards (control/ingest.py).
MAX_EXPECTED_OUTPUT = 256


class Row(NamedTuple):
    """`output_tokens` is what only the engine finds out; the others a Request says."""

    idx: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int

    @property
    def num_tokens(self) -> int:
        """Prompt and the longest answer: what a Worker must be able to hold."""
        return self.prompt_tokens + self.max_tokens

    @property
    def expected_output(self) -> int:
        return min(self.max_tokens, MAX_EXPECTED_OUTPUT)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens: log-normal around `median`, held between `least` and `most`. `spread` is the standard
    deviation of the logarithm; 0: all have the median."""

    median: int
    spread: float = 0.0
    least: int = 1
    most: int = 1 << 20

    def draw(self, rng: random.Random) -> int:
        if not self.spread:
            return self.median
        drawn = round(self.median * math.exp(self.spread * rng.gauss(0.0, 1.0)))
        return min(max(drawn, self.least), self.most)


@dataclass(frozen=True, slots=True)
class RowKind:
    """Rows of one sort, `share` of all rows of a batch. Answers end by themselves before
    `max_tokens`, or there."""

    prompt: Lengths
    output: Lengths
    max_tokens: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A batch as its tenant submits it. Seconds count from the begin of the trace."""

    id: str
    tenant_id: str
    arrives_at: float
    num_rows: int
    kinds: tuple[RowKind, ...]
    due_in_s: float | None = None

    @property
    def due_at(self) -> float:
        return math.inf if self.due_in_s is None else self.arrives_at + self.due_in_s

    def windows(self, seed: int) -> Iterator[list[Row]]:
        """The rows in their order; the same for the same seed, on every machine."""
        shares = [kind.share for kind in self.kinds]
        for start in range(0, self.num_rows, WINDOW_ROWS):
            rng = random.Random(f"{seed}/{self.id}/{start}")
            size = min(WINDOW_ROWS, self.num_rows - start)
            kinds = rng.choices(self.kinds, shares, k=size)
            yield [_draw(start + i, kind, rng) for i, kind in enumerate(kinds)]


def _draw(idx: int, kind: RowKind, rng: random.Random) -> Row:
    prompt_tokens = kind.prompt.draw(rng)
    output_tokens = min(kind.output.draw(rng), kind.max_tokens)
    return Row(idx, prompt_tokens, output_tokens, kind.max_tokens)


@dataclass(frozen=True, slots=True)
class Trace:
    """What arrives at a fleet and when, fixed by `seed` before any policy is asked."""

    name: str
    #: What it is like and what is expected of routing, for people.
    about: str
    batches: tuple[BatchSpec, ...]
    seed: int = 1

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)
