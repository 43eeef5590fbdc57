"""The lines of a Shard that is done, kept in the Store until its slice is merged.

Near the end of a batch, so that when its last row is answered only the last Shards have to be made
into lines; those of the others are copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gristmill.errors import KeyNotFound
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.stores.base import Store
from gristmill.stores.keys import lines_key

# A document:
#   {"rows": [[idx, failed, num_bytes], ...]}\n
#   <the lines, one after the other>


class RowLine(NamedTuple):
    """The line of a row, with its newline, for the output or, when it failed, the error file."""

    idx: int
    failed: bool
    line: bytes


def keep_lines(store: Store, batch: Batch, n: int, lines: Iterable[RowLine]) -> None:
    """Write them all. Raises StoreError."""
    lines = list(lines)
    rows = [[row.idx, row.failed, len(row.line)] for row in lines]
    head = json.dumps({"rows": rows}, separators=(",", ":")).encode() + b"\n"
    key = lines_key(batch.tenant_id, batch.id, batch.run_id, n)
    store.put(key, head + b"".join(row.line for row in lines))


def kept_lines(store: Store, batch: Batch, shard: ShardRow) -> Iterator[RowLine] | None:
    """None when there are none, or not all of them: then they can be made again."""
    if not shard.has_lines:
        return None
    try:
        document = store.get(lines_key(batch.tenant_id, batch.id, batch.run_id, shard.n))
    except KeyNotFound:
        return None
    head, _, lines = document.partition(b"\n")
    try:
        rows = json.loads(head)["rows"]
    except ValueError:
        return None
    is_whole = len(rows) == shard.num_rows and sum(size for *_, size in rows) == len(lines)
    return _cut(rows, lines) if is_whole else None


def _cut(rows: Iterable[tuple[int, bool, int]], lines: bytes) -> Iterator[RowLine]:
    at = 0
    for idx, failed, size in rows:
        yield RowLine(idx, failed, lines[at : at + size])
        at += size
