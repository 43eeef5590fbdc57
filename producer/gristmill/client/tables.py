"""Results as rows of a table: one column for each thing that is asked for, and the receipt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import tee
from typing import TYPE_CHECKING, Any

from gristmill.client.rows import id_of, rows_of
from gristmill.data.join import (
    RECEIPT_TYPE,
    check_no_clash,
    in_order_of,
    outcome_of,
    receipt_of,
)
from gristmill.data.prompts import RowIds
from gristmill.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

    from gristmill.client.results import Result


def flat_row(line: Mapping[str, Any] | None) -> dict[str, Any]:
    """What became of one row: `answer` is a text, `answer_json` an answer that is none."""
    outcome = outcome_of(line)
    body = outcome.body or {}
    choice: Mapping[str, Any] = next(iter(body.get("choices") or ()), {})
    message = choice.get("message")
    text = choice.get("text") if message is None else message.get("content")
    usage = body.get("usage") or {}
    answer = None
    if outcome.body is not None and text is None:
        rest = {name: value for name, value in body.items() if name not in _TOLD}
        answer = json.dumps(rest, ensure_ascii=False)
    return {
        "answer": text,
        "answer_json": answer,
        "finish_reason": choice.get("finish_reason"),
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "error_code": outcome.error_code,
        "error_message": outcome.error_message,
        "receipt": receipt_of(outcome),
    }


#: Told by other columns, or the same in all rows.
_TOLD = frozenset({"id", "object", "created", "model", "usage", "gristmill", "system_fingerprint"})


def column_types() -> dict[str, Any]:
    """Of a file with columns, as `write_rows` takes them."""
    texts = ("custom_id", "answer", "answer_json", "finish_reason", "error_code", "error_message")
    numbers = ("prompt_tokens", "completion_tokens")
    return {**dict.fromkeys(texts, str), **dict.fromkeys(numbers, int), "receipt": RECEIPT_TYPE}


def table_rows(lines: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield {"custom_id": line["custom_id"], **flat_row(line)}


def joined_rows(
    source: Any, lines: Iterable[Mapping[str, Any]], *, id_column: str | None
) -> Iterator[dict[str, Any]]:
    """Each row of the source with what became of it behind. Raises DataInvalid."""
    rows, copies = tee(rows_of(source))
    ids = RowIds(id_column)
    wanted = (id_of(row, number, ids) for number, row in enumerate(copies, 1))
    for row, line in zip(rows, in_order_of(wanted, lines), strict=True):
        result = flat_row(line)
        check_no_clash(row, result)
        yield {**row, **result}


def frame_of(results: Iterable[Result]) -> pd.DataFrame:
    """Raises UsageError without pandas."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise UsageError("to_pandas needs the package pandas: pip install pandas.") from error
    rows = list(table_rows(result.line for result in results))
    return pd.DataFrame.from_records(rows, columns=["custom_id", *flat_row(None)])
