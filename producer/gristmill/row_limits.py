"""Row limits of a batch: where answers end that may be longer than any machine takes.

A row that may have more tokens, prompt and answer, than any machine of its model takes is run, and
its answer ends somewhere. Where, is a matter of the batch and not of the machine that has the row:
when the first such row is sent, what the largest machine takes becomes a limit of the batch, for
all rows with the same features. It lies in the Store, so that nothing forgets it, and each Worker
ends answers there, however much it takes itself: a larger machine that comes later, a Shard that
moves, or a message of old changes nothing.

A limit holds for rows whose prompt leaves room for an answer below it; of several, the lowest does.
There are several where longer prompts have waited for a larger machine, and where what takes as
much as the limit was not heard of for a day: then it is lowered, so that rows need not wait for
ever, and those that had ended before keep their longer answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gristmill.needs import needs_of
from gristmill.stores.base import Store
from gristmill.types import Job


def limit_of(least_row_tokens: int, limits: Iterable[int]) -> int | None:
    """The limit that holds for a row with such a prompt; None if none does."""
    return min((limit for limit in limits if limit >= least_row_tokens), default=None)


def limited(job: Job, limits: Iterable[int]) -> Job:
    """With the limit of its batch that holds for it, if any."""
    limit = limit_of(needs_of(job).least_row_tokens, limits)
    return job if limit is None else replace(job, row_limit=limit)


def row_tokens_of(job: Job) -> int:
    """How many a row of it has at most, prompt and answer."""
    most = needs_of(job).max_row_tokens
    return min(most, job.row_limit) if job.row_limit else most


def read_limits(store: Store, prefix: str) -> list[int]:
    """In tokens, as they lie under `keys.limits_prefix`. Raises StoreError."""
    return [int(name) for key in store.list(prefix) if (name := key.removeprefix(prefix)).isdigit()]


def add_limit(store: Store, prefix: str, row_tokens: int) -> None:
    """To put it again is harmless. Raises StoreError."""
    store.put(f"{prefix}{row_tokens}", b"")
