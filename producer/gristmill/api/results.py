"""/v1/batches/{id}/results: the rows that count so far, as NDJSON, to be read on from a cursor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from gristmill.api.batches import find_batch
from gristmill.api.context import BatchesReader, UseApi
from gristmill.api.failures import refused
from gristmill.control.accepted import Cursor, accepted_lines

router = APIRouter(prefix="/v1/batches", tags=["Batches"])

_CHUNK_BYTES = 64 * 1024
_CURSOR = re.compile(r"([0-9]{1,15})-([0-9]{1,9})")


@router.get(
    "/{batch_id}/results",
    response_class=Response,
    responses={200: {"content": {"application/x-ndjson": {}}, "description": "One row a line"}},
)
def stream_results(
    batch_id: str,
    api: UseApi,
    caller: BatchesReader,
    after: Annotated[str | None, Query(description="`cursor` of the last line seen.")] = None,
    limit: Annotated[int | None, Query(ge=1, le=1_000_000, description="Most rows.")] = None,
) -> Response:
    """Rows in the order in which they were accepted, answers and failures alike.

    Each line is as in the result files, with a `cursor` more: ask on with the last one as `after`.
    The order never changes, no row comes twice. Rows that were never run are in the error file.
    """
    match = _CURSOR.fullmatch(after) if after is not None else None
    if after is not None and match is None:
        raise refused(
            f"{after[:80]!a} is no cursor. Send the `cursor` of the last line.", param="after"
        )
    batch = find_batch(api, caller.tenant_id, batch_id)
    cursor = Cursor(int(match[1]), int(match[2])) if match else Cursor()
    rows = accepted_lines(api.ledger, api.store, batch, cursor)

    def lines() -> Iterator[bytes]:
        for at, line in islice(rows, limit):
            # In front of what the files have, so that a line is never taken apart for it.
            yield b'{"cursor":"%d-%d",' % (at.number, at.position) + line[1:]

    return StreamingResponse(_chunks(lines()), media_type="application/x-ndjson")


def _chunks(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Many lines at a time: each chunk costs a switch of threads."""
    some: list[bytes] = []
    num_bytes = 0
    for line in lines:
        some.append(line)
        num_bytes += len(line)
        if num_bytes >= _CHUNK_BYTES:
            yield b"".join(some)
            some, num_bytes = [], 0
    if some:
        yield b"".join(some)
