"""A few rows of a batch, shortened to what fits a page."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gristmill.api.context import Api
from gristmill.api.failures import ApiError
from gristmill.api.results import lines_behind
from gristmill.errors import GristmillError
from gristmill.ledger.batch import Batch

log = logging.getLogger(__name__)

_ROWS = 10
_MAX_TEXT_CHARS = 2000
_MAX_LINE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class SampleRow:
    """`text` is the beginning of the answer, or why there is none."""

    custom_id: str
    status: str
    is_failed: bool
    text: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """`next_cursor` leads to the rows behind; `problem` says why there are none to see."""

    rows: tuple[SampleRow, ...] = ()
    next_cursor: str | None = None
    problem: str = ""


def sample_of(api: Api, batch: Batch, *, after: str | None) -> Sample:
    """Rows in the order in which they were accepted, from the cursor on.

    Raises ApiError for what is no cursor of this batch.
    """
    rows: list[SampleRow] = []
    cursor, has_more = None, False
    try:
        for at, line in islice(lines_behind(api, batch, after), _ROWS + 1):
            if len(rows) == _ROWS:
                has_more = True
                break
            rows.append(row_of(line))
            cursor = at
    except ApiError as error:
        if error.code == "results_gone":
            return Sample(problem=error.message)
        raise
    except GristmillError as error:
        # The rest of the page does not need the Store.
        log.warning("rows not shown batch=%s reason=%s", batch.id, error)
        return Sample(tuple(rows), problem="The rows cannot be read just now.")
    return Sample(tuple(rows), cursor if has_more else None)


def row_of(line: bytes) -> SampleRow:
    if len(line) > _MAX_LINE_BYTES:
        return SampleRow("", "long", False, f"A line of {len(line):,} bytes is too long to show.")
    document: dict[str, Any] = json.loads(line)
    custom_id = str(document["custom_id"])
    response = document.get("response")
    if response is None:
        error = document.get("error") or {}
        return SampleRow(custom_id, str(error.get("code")), True, _cut(error.get("message")))
    body = response["body"]
    if response["status_code"] != 200:
        error = body.get("error") or {}
        status = f"{response['status_code']} {error.get('code') or ''}".strip()
        return SampleRow(custom_id, status, True, _cut(error.get("message")))
    usage = body.get("usage") or {}
    return SampleRow(
        custom_id,
        "200",
        False,
        _cut(_answer(body)),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens", 0),
    )


def _answer(body: Mapping[str, Any]) -> str:
    """What a reader would call the answer, of any endpoint."""
    choices = body.get("choices")
    if choices:
        message = choices[0].get("message") or {}
        calls = message.get("tool_calls")
        text = message.get("content") or choices[0].get("text")
        return str(text) if text or not calls else json.dumps(calls, ensure_ascii=False)
    data = body.get("data")
    if isinstance(data, list):
        first = data[0].get("embedding") if data else None
        return f"{len(data)} embedding(s)" + (
            f", the first of {len(first)} numbers" if isinstance(first, list) else ""
        )
    shown = {k: v for k, v in body.items() if k not in ("id", "object", "usage", "gristmill")}
    return json.dumps(shown, ensure_ascii=False)


def _cut(text: object) -> str:
    whole = "" if text is None else str(text)
    return whole if len(whole) <= _MAX_TEXT_CHARS else f"{whole[:_MAX_TEXT_CHARS]}…"
