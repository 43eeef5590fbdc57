"""/v1/batches/{id}/results: the rows that count so far, as NDJSON, to be read on from a cursor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from gristmill.api.batches import find_batch
from gristmill.api.context import Api, BatchesReader, UseApi
from gristmill.api.failures import ApiError, refused
from gristmill.control.accepted import Cursor, accepted_lines, is_of_this_order
from gristmill.control.published import FilePlace, NoSuchPlace, published_lines
from gristmill.ledger import files
from gristmill.ledger.batch import Batch
from gristmill.ledger.status import OPEN

router = APIRouter(prefix="/v1/batches", tags=["Batches"])

_CHUNK_BYTES = 64 * 1024
_CURSOR = re.compile(r"([0-9]{1,15})-([0-9]{1,9})-([0-9a-f]{1,12})")
_PLACE = re.compile(r"(output|error)-([0-9]{1,18})")


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
    The order never changes, no row comes twice, unless the ledger was lost and rebuilt: then
    earlier cursors are refused (`cursor_expired`). Rows that were never run are in the error file.
    Some days after the end of the batch the order of acceptance is forgotten. Then the rows come
    out of the result files, in theirs, and earlier cursors are refused (`cursor_expired`).
    """
    batch = find_batch(api, caller.tenant_id, batch_id)
    rows = lines_behind(api, batch, after)

    def lines() -> Iterator[bytes]:
        for at, line in islice(rows, limit):
            # In front of what the files have, so that a line is never taken apart for it.
            yield b'{"cursor":"%s",' % at.encode() + line[1:]

    return StreamingResponse(_chunks(lines()), media_type="application/x-ndjson")


def lines_behind(api: Api, batch: Batch, after: str | None) -> Iterator[tuple[str, bytes]]:
    """Rows of a batch, each with its cursor, behind that of the row that `after` names.

    Raises ApiError for what is no cursor of this batch, or not any more, and for lost results.
    """
    match = _CURSOR.fullmatch(after) if after is not None else None
    place = _PLACE.fullmatch(after) if after is not None else None
    if after is not None and match is None and place is None:
        raise refused(
            f"{after[:80]!a} is no cursor. Send the `cursor` of the last line.", param="after"
        )
    if _has_work(batch, api.now):
        if place is not None:
            raise _no_such_cursor(after)
        cursor = Cursor(int(match[1]), int(match[2]), match[3]) if match else Cursor()
        if not is_of_this_order(api.ledger, batch, cursor):
            raise refused(
                f"The order of the rows is another one than when {after!a} was given out: the "
                "ledger of the service was rebuilt since. Read them again without `after`.",
                param="after",
                code="cursor_expired",
            )
        return (
            (f"{at.number}-{at.position}-{at.trail}", line)
            for at, line in accepted_lines(api.ledger, api.store, batch, cursor)
        )
    if match is not None:
        raise refused(
            "The order in which the rows of this batch were accepted is not kept any more. "
            "Read them again without `after`, or take the output file.",
            param="after",
            code="cursor_expired",
        )
    return _published(api, batch, FilePlace(place[1], int(place[2])) if place else FilePlace())


def _has_work(batch: Batch, now: int) -> bool:
    """Whether the Segments are there, and not about to be removed."""
    return batch.status in OPEN or (batch.remove_work_at is not None and now < batch.remove_work_at)


def _published(api: Api, batch: Batch, place: FilePlace) -> Iterator[tuple[str, bytes]]:
    file_ids = {"output": batch.output_file_id, "error": batch.error_file_id}
    with api.ledger.read() as conn:
        for file_id in filter(None, file_ids.values()):
            if files.get(conn, batch.tenant_id, file_id, now=api.now) is None:
                raise ApiError(
                    404,
                    "The results of this batch are gone: one of its files was deleted or has "
                    "expired. A new batch of the same input computes them again.",
                    code="results_gone",
                    param="batch_id",
                )
    try:
        found = published_lines(api.store, batch.tenant_id, file_ids, place)
    except NoSuchPlace as error:
        raise _no_such_cursor(f"{place.which}-{place.offset}") from error
    return ((f"{at.which}-{at.offset}", line) for at, line in found)


def _no_such_cursor(after: str | None) -> ApiError:
    return refused(f"{after!a} is no cursor of this batch.", param="after")


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
