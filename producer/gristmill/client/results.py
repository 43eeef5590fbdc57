"""The rows of a batch, or of several that belong together: as they come, or in the input's order.

Both can be read on from the `cursor` of any row, in another process too.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.client.calls import fetch
from gristmill.client.errors import APIConnectionError
from gristmill.client.objects import Batch
from gristmill.client.result_files import (
    FIRST_POLL_S,
    MAX_POLL_S,
    fetch_results,
    read_lines,
    refuse_failed,
)
from gristmill.client.retry import delay_s
from gristmill.client.steps import Close, Item, Read, Sleep, Steps
from gristmill.data.join import outcome_of
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.client.batches import BatchCalls

_ORDERED = re.compile(r"#([0-9]{1,15})")
#: The service's cursor, and how many rows were seen of those that it does not count.
_PLACE = re.compile(r"([A-Za-z0-9_-]*)(?:!([0-9]{1,15}))?")
#: Rows that no Attempt has answered, which only the error file has.
NEVER_RUN_CODES = frozenset({"batch_expired", "batch_cancelled", "budget_exceeded"})


@dataclass(frozen=True, slots=True)
class Result:
    """One row. `line` is the whole of it, as in the result files."""

    custom_id: str
    line: dict[str, Any] = field(repr=False)
    #: Where to read on behind this row.
    cursor: str = field(repr=False)

    @property
    def ok(self) -> bool:
        return outcome_of(self.line).body is not None

    @property
    def body(self) -> dict[str, Any] | None:
        """The answer, as the endpoint gives it; None when the row failed."""
        body = outcome_of(self.line).body
        return None if body is None else dict(body)

    @property
    def text(self) -> str | None:
        """The first text of a generated answer."""
        for choice in (self.body or {}).get("choices") or ():
            message = choice.get("message")
            text = choice.get("text") if message is None else message.get("content")
            return None if text is None else str(text)
        return None

    @property
    def error_code(self) -> str | None:
        return outcome_of(self.line).error_code

    @property
    def error(self) -> str | None:
        """What went wrong, as `code: message`; None for an answer."""
        outcome = outcome_of(self.line)
        return (
            None
            if outcome.error_code is None
            else (f"{outcome.error_code}: {outcome.error_message}")
        )


def results(
    calls: BatchCalls, batch_ids: list[str], *, ordered: bool, after: str | None
) -> Steps[None]:
    """Items are Results. Waits for rows that are not there yet.

    Raises UsageError for a cursor that is none, BatchFailed, APIError.
    """
    if ordered:
        return _ordered(calls, batch_ids, after)
    return _as_they_come(calls, batch_ids, after)


def _ordered(calls: BatchCalls, batch_ids: list[str], after: str | None) -> Steps[None]:
    match = _ORDERED.fullmatch(after or "#0")
    if match is None:
        raise UsageError(f"{after!r} is no cursor of ordered results; those look like '#120'.")
    num_seen, number = int(match[1]), 0
    for batch_id in batch_ids:
        with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
            files = yield from fetch_results(calls, batch_id, Path(folder))
            for line in files.lines():
                number += 1
                if number > num_seen:
                    yield Item(Result(line["custom_id"], line, f"#{number}"))


@dataclass
class _Place:
    """How far one batch is read: a cursor of accepted rows, then rows that were never run."""

    batch_id: str
    cursor: str | None = None
    num_never_run: int = 0
    is_done: bool = False

    def __str__(self) -> str:
        return (self.cursor or "") + (f"!{self.num_never_run}" if self.num_never_run else "")


def _places(batch_ids: list[str], after: str | None) -> list[_Place]:
    parts = after.split(",") if after is not None else [""] * len(batch_ids)
    matches = [_PLACE.fullmatch(part) for part in parts]
    if len(parts) != len(batch_ids) or None in matches:
        raise UsageError(
            f"{after!r} is no cursor of these results. Give the `cursor` of the last row seen."
        )
    return [
        _Place(batch_id, match[1] or None, int(match[2] or 0))
        for batch_id, match in zip(batch_ids, matches, strict=True)
        if match is not None
    ]


def _as_they_come(calls: BatchCalls, batch_ids: list[str], after: str | None) -> Steps[None]:
    places = _places(batch_ids, after)
    poll_s = FIRST_POLL_S
    while True:
        num_new = 0
        for place in places:
            if place.is_done:
                continue
            # Looked at before its rows are read: rows that come after this look are seen next time.
            batch = yield from calls.retrieve(place.batch_id, {})
            refuse_failed(batch)
            num_new += yield from _accepted(calls, place, places)
            if batch.has_ended:
                num_new += yield from _never_run(calls, batch, place, places)
                place.is_done = True
        if all(place.is_done for place in places):
            return
        poll_s = FIRST_POLL_S if num_new else min(poll_s * 1.5, MAX_POLL_S)
        yield Sleep(poll_s)


def accepted(
    calls: BatchCalls, batch_id: str, *, after: str | None, limit: int | None
) -> Steps[None]:
    """Items are Results: the rows that count by now, and no waiting for more."""
    places = _places([batch_id], after)
    yield from _accepted(calls, places[0], places, limit=limit)


def _accepted(
    calls: BatchCalls, place: _Place, places: list[_Place], *, limit: int | None = None
) -> Steps[int]:
    """The rows that count by now, each once, however often the connection breaks."""
    num_rows = num_failures = 0
    while True:
        left = None if limit is None else limit - num_rows
        if left == 0:
            return num_rows
        request = calls.accepted(place.batch_id, place.cursor, left)
        reply = yield from fetch(request)
        rest = b""
        try:
            while piece := (yield Read(reply.stream)):
                *whole, rest = (rest + piece).split(b"\n")
                for raw in whole:
                    line = msgspec.json.decode(raw)
                    place.cursor = line.pop("cursor")
                    num_rows, num_failures = num_rows + 1, 0
                    yield Item(Result(line["custom_id"], line, ",".join(map(str, places))))
            yield Close(reply.stream)
            if not rest:
                return num_rows
            raise APIConnectionError("The rows ended in the middle of one.", request=request)
        except APIConnectionError:
            num_failures += 1
            if num_failures > request.max_retries:
                raise
        yield Sleep(delay_s(num_failures))


def _never_run(calls: BatchCalls, batch: Batch, place: _Place, places: list[_Place]) -> Steps[int]:
    """What the service does not count as accepted."""
    if batch.error_file_id is None:
        return 0
    num_rows = 0
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        path = yield from calls.files.download(batch.error_file_id, Path(folder, "errors"), {})
        lines = (line for line in read_lines(path) if _is_never_run(line))
        for line in islice(lines, place.num_never_run, None):
            place.num_never_run += 1
            num_rows += 1
            yield Item(Result(line["custom_id"], line, ",".join(map(str, places))))
    return num_rows


def _is_never_run(line: dict[str, Any]) -> bool:
    error = line.get("error")
    return error is not None and error.get("code") in NEVER_RUN_CODES
