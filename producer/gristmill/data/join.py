"""Results beside the rows that they belong to: joined by id, in the order of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gristmill.data.template import names
from gristmill.errors import DataInvalid

Line = Mapping[str, Any]


def in_order_of(ids: Iterable[str], *results: Iterable[Line]) -> Iterator[Line | None]:
    """For each id the line of results with that custom_id, None where there is none.

    Results are read only as far as they must be. Those that come before their row are held, so
    results in the order of the rows, as Gristmill writes them, take no memory. Several files of
    results (answers and errors) are one.
    """
    held: dict[str, Line] = {}
    sources = [iter(lines) for lines in results]
    ahead: list[Line | None] = [next(source, None) for source in sources]
    for wanted in ids:
        if wanted in held:
            yield held.pop(wanted)
            continue
        found = _take(wanted, sources, ahead)
        if found is None:
            found = _search(wanted, sources, ahead, held)
        yield found


def merged_by(ids: Iterable[str], *results: Iterable[Line]) -> Iterator[Line]:
    """The lines of several files of results in the order of the ids, of which some have no line.

    Each file must be in that order, as Gristmill writes them; nothing is held. Raises DataInvalid
    in the end for one that is not.
    """
    sources = [iter(lines) for lines in results]
    ahead: list[Line | None] = [next(source, None) for source in sources]
    for wanted in ids:
        found = _take(wanted, sources, ahead)
        if found is not None:
            yield found
    if left := [line["custom_id"] for line in ahead if line is not None]:
        raise DataInvalid(
            f"The results are not in the order of the input: {names(left)} come too early or are "
            "no row of it."
        )


def _take(wanted: str, sources: list[Iterator[Line]], ahead: list[Line | None]) -> Line | None:
    """The next line of one of the sources, if it is the wanted one."""
    for i, line in enumerate(ahead):
        if line is not None and line["custom_id"] == wanted:
            ahead[i] = next(sources[i], None)
            return line
    return None


def _search(
    wanted: str, sources: list[Iterator[Line]], ahead: list[Line | None], held: dict[str, Line]
) -> Line | None:
    """The wanted line further on, in whichever source; what stands before it is held."""
    while any(line is not None for line in ahead):
        for i, line in enumerate(ahead):
            if line is None:
                continue
            ahead[i] = next(sources[i], None)
            if line["custom_id"] == wanted:
                return line
            held[line["custom_id"]] = line
    return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result line, read by its status and not by the mere presence of a body."""

    body: Mapping[str, Any] | None
    error_code: str | None = None
    error_message: str | None = None

    @property
    def receipt(self) -> Mapping[str, Any] | None:
        return None if self.body is None else self.body.get("gristmill")


def outcome_of(line: Line | None) -> Outcome:
    """What became of a row. A row without a line has an error, too."""
    if line is None:
        return Outcome(None, "no_result", "There is no line for this row in the results.")
    response, error = line.get("response"), line.get("error")
    if response is None:
        error = error or {}
        return Outcome(None, str(error.get("code") or "unknown"), str(error.get("message") or ""))
    body = response.get("body") or {}
    if response.get("status_code") == 200:
        return Outcome(body)
    error = body.get("error") or {}
    code = error.get("code") or f"status_{response.get('status_code')}"
    return Outcome(None, str(code), str(error.get("message") or ""))


#: The fields of a column of receipts, for files with types. What is nested is left out.
RECEIPT_TYPE = {
    "model_revision": str,
    "tokenizer_hash": str,
    "template_hash": str,
    "engine_version": str,
    "dtype": str,
    "attempt": str,
    "attempt_count": int,
    "computed_for_rows": int,
    "cached_tokens": int,
    "seed": "uint64",
    "queue_ms": float,
    "prefill_ms": float,
    "decode_ms": float,
    "ttft_ms": float,
    "itl_ms": float,
}


def receipt_of(outcome: Outcome) -> dict[str, Any] | None:
    """The receipt's plain values, always under the same names."""
    receipt = outcome.receipt
    return None if receipt is None else {name: receipt.get(name) for name in RECEIPT_TYPE}


def check_no_clash(row: Mapping[str, Any], added: Iterable[str]) -> None:
    """Raises DataInvalid when the data set has a column of a name that results need."""
    if both := [name for name in added if name in row]:
        raise DataInvalid(
            f"The data set has the columns {names(both)}, and the results are to have them too. "
            "Rename yours."
        )
