"""Where things lie in the Store. Every key begins with the tenant and holds no user text.

t/{tenant}/b/{batch}/batch.json                                  what the batch is
t/{tenant}/b/{batch}/stop                                        its rows need not run any more
t/{tenant}/b/{batch}/end.json                                    how it ended, when it has
t/{tenant}/b/{batch}/{run}/ingested.json                         that all of its input is in Shards
t/{tenant}/b/{batch}/{run}/shards/{n}                            Jobs, written once by ingest
t/{tenant}/b/{batch}/{run}/limits/{features}/{tokens}            where answers end (row_limits.py)
t/{tenant}/b/{batch}/{run}/segments/{n}/{attempt}/{seq}          results, appended by workers
t/{tenant}/b/{batch}/{run}/frozen.json                           the Segments that count
t/{tenant}/b/{batch}/{run}/lines/{n}                             those of a Shard, to be merged
t/{tenant}/b/{batch}/{run}/merged/{slice}/{output|error}         pieces of the result files
t/{tenant}/files/{file}                                          uploaded and result files
"""

from __future__ import annotations

from collections.abc import Iterable

from gristmill.errors import CorruptDocument
from gristmill.types import Bell


def batch_prefix(tenant_id: str, batch_id: str) -> str:
    return f"t/{tenant_id}/b/{batch_id}/"


def batch_key(tenant_id: str, batch_id: str) -> str:
    return f"{batch_prefix(tenant_id, batch_id)}batch.json"


def stop_key(tenant_id: str, batch_id: str) -> str:
    return f"{batch_prefix(tenant_id, batch_id)}stop"


def end_key(tenant_id: str, batch_id: str) -> str:
    return f"{batch_prefix(tenant_id, batch_id)}end.json"


def ingested_key(tenant_id: str, batch_id: str, run_id: str) -> str:
    return f"{batch_prefix(tenant_id, batch_id)}{run_id}/ingested.json"


def shard_key(tenant_id: str, batch_id: str, run_id: str, n: int) -> str:
    return f"{batch_prefix(tenant_id, batch_id)}{run_id}/shards/{n:08d}"


def limits_prefix(tenant_id: str, batch_id: str, run_id: str, features: Iterable[str]) -> str:
    """The row limits of a run, for rows that ask for these features."""
    names = "-".join(sorted(features)) or "none"
    return f"{batch_prefix(tenant_id, batch_id)}{run_id}/limits/{names}/"


def segments_prefix(tenant_id: str, batch_id: str, run_id: str, n: int | None = None) -> str:
    """All Segments of a run, or those of one Shard."""
    shard = "" if n is None else f"{n:08d}/"
    return f"{batch_prefix(tenant_id, batch_id)}{run_id}/segments/{shard}"


def segment_key(bell: Bell) -> str:
    """The key of the Segment that a Bell tells of."""
    prefix = segments_prefix(bell.tenant_id, bell.batch_id, bell.run_id, bell.shard_n)
    return f"{prefix}{bell.attempt_id}/{bell.seq:08d}"


def parse_segment_key(key: str) -> Bell:
    """The Bell that would tell of the Segment under this key. Raises CorruptDocument."""
    match key.split("/"):
        case ["t", tenant_id, "b", batch_id, run_id, "segments", n, attempt_id, seq]:
            return Bell(tenant_id, batch_id, run_id, int(n), attempt_id, int(seq))
    raise CorruptDocument(f"This is not the key of a Segment: {key!r}.")


def frozen_key(tenant_id: str, batch_id: str, run_id: str) -> str:
    return f"{batch_prefix(tenant_id, batch_id)}{run_id}/frozen.json"


def lines_key(tenant_id: str, batch_id: str, run_id: str, n: int) -> str:
    return f"{batch_prefix(tenant_id, batch_id)}{run_id}/lines/{n:08d}"


def merged_key(tenant_id: str, batch_id: str, run_id: str, slice_n: int, which: str) -> str:
    """`which` is `output` or `error`."""
    return f"{batch_prefix(tenant_id, batch_id)}{run_id}/merged/{slice_n:08d}/{which}"


def file_key(tenant_id: str, file_id: str) -> str:
    return f"t/{tenant_id}/files/{file_id}"
