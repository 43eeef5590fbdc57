"""Shards of simulated batches: cut as ingest cuts them, one size class in each, or none apart."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

from gristmill.errors import UsageError
from gristmill.simulator.work import BatchSpec, Row

#: Numbers that are kept of a row: its own four, and the tokens in its checkpoint.
_WIDTH = 5


class SimShard:
    """One Shard and how far it is, in few bytes: most of them wait."""

    __slots__ = (
        "_packed",
        "batch",
        "expected_tokens",
        "lane",
        "least_row_tokens",
        "max_row_tokens",
        "n",
        "num_attempts",
        "num_done",
        "num_jobs",
        "prompt_tokens",
        "size_class",
    )

    def __init__(self, batch: BatchSpec, n: int, rows: Sequence[Row], size_class: object) -> None:
        self.batch = batch
        self.n = n
        self.size_class = size_class
        self.num_jobs = len(rows)
        self.prompt_tokens = sum(row.prompt_tokens for row in rows)
        self.expected_tokens = self.prompt_tokens + sum(row.expected_output for row in rows)
        self.max_row_tokens = max(row.num_tokens for row in rows)
        self.least_row_tokens = max(row.prompt_tokens for row in rows) + 1
        #: Jobs that have finished.
        self.num_done = 0
        self.num_attempts = 0
        #: Where it was sent; empty while it waits.
        self.lane = ""
        self.leave((row, 0) for row in rows)

    def leave(self, rows: Iterable[tuple[Row, int]]) -> None:
        """These have no stored result, each with the tokens of its answer that the newest
        checkpoint holds."""
        self._packed = array("I", (n for row, done_tokens in rows for n in (*row, done_tokens)))

    @property
    def rows(self) -> list[tuple[Row, int]]:
        """As they were left."""
        numbers = iter(self._packed)
        return [(Row(*four), done) for *four, done in zip(*[numbers] * _WIDTH, strict=True)]

    @property
    def num_left(self) -> int:
        return len(self._packed) // _WIDTH

    @property
    def tokens_left(self) -> int:
        """Expected, of the Jobs that have not finished."""
        return self.expected_tokens * (self.num_jobs - self.num_done) // self.num_jobs


def cut(
    spec: BatchSpec,
    seed: int,
    class_of: Callable[[Row], object],
    *,
    max_jobs: int,
    max_tokens: int,
    max_row_tokens: int,
) -> Iterator[list[SimShard]]:
    """The Shards of a batch, window by window. Rows of different `class_of` never travel
    together; within a class they keep their order.

    Raises UsageError for a row of more than `max_row_tokens`, which nothing can run.
    """
    n = 0
    for window in spec.windows(seed):
        by_class: dict[object, list[Row]] = {}
        for row in window:
            by_class.setdefault(class_of(row), []).append(row)
        made = []
        longest = max(row.num_tokens for row in window)
        if longest > max_row_tokens:
            raise UsageError(
                f"A row of the batch {spec.id} needs {longest:,} tokens for prompt and answer, and "
                f"the largest machine of the fleet takes {max_row_tokens:,}. Shorten `most` or "
                "`max_tokens` of its rows, or add a machine of a higher `max_row_tokens`."
            )
        for size_class, rows in by_class.items():
            for some in _pieces(rows, max_jobs, max_tokens):
                made.append(SimShard(spec, n, some, size_class))
                n += 1
        yield made


def _pieces(rows: Iterable[Row], max_jobs: int, max_tokens: int) -> Iterator[list[Row]]:
    """As control/ingest.py cuts: in their order, always at least one."""
    some: list[Row] = []
    num_tokens = 0
    for row in rows:
        cost = row.prompt_tokens + row.expected_output
        if some and (len(some) == max_jobs or num_tokens + cost > max_tokens):
            yield some
            some, num_tokens = [], 0
        some.append(row)
        num_tokens += cost
    if some:
        yield some
