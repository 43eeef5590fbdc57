"""From the rows of a caller to the lines of a batch's input file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from gristmill.data.json_lines import plain
from gristmill.data.prompts import CHAT_URL, PLAIN_URL, Prompt, RowIds, request
from gristmill.data.rows import Source, read_rows
from gristmill.data.template import Template, names
from gristmill.errors import DataInvalid, UsageError

EMBEDDINGS_URL, SCORE_URL = "/v1/embeddings", "/v1/score"
_ENDPOINTS = (CHAT_URL, PLAIN_URL, EMBEDDINGS_URL, SCORE_URL)
#: The column that a row without a template is asked by, and the endpoint that it means.
_BY_COLUMN = {"messages": CHAT_URL, "prompt": PLAIN_URL, "input": EMBEDDINGS_URL}
_SCORE_FIELDS = ("type", "context", "messages", "continuation", "choices", "text")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a row becomes a request: through a template, or by what its columns are called.

    A row that is a whole request (custom_id, url, body) stays one; `model` and `params` then fill
    in what its body lacks. A text alone is what a user says.
    """

    model: str | None
    endpoint: str | None = None
    template: Template | None = None
    system: Template | None = None
    id_column: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *,
        model: str | None,
        endpoint: str | None,
        template: str | Template | None,
        system: str | Template | None,
        id_column: str | None,
        params: Mapping[str, Any],
    ) -> Recipe:
        """Raises UsageError."""
        if endpoint is not None and f"/v1{endpoint.removeprefix('/v1')}" not in _ENDPOINTS:
            raise UsageError(f"endpoint is {endpoint!r}. There are {', '.join(_ENDPOINTS)}.")
        if endpoint is not None:
            endpoint = f"/v1{endpoint.removeprefix('/v1')}"
        if template is not None and endpoint == SCORE_URL:
            raise UsageError(
                "A template makes a prompt, and /v1/score wants a context and what is scored: "
                "give these as columns."
            )
        made = cls(
            model=model,
            endpoint=endpoint,
            template=Template(template) if isinstance(template, str) else template,
            system=Template(system) if isinstance(system, str) else system,
            id_column=id_column,
            params=params,
        )
        if made.system is not None and (made.endpoint or CHAT_URL) != CHAT_URL:
            raise UsageError("A system message belongs to a chat. Leave it out.")
        return made

    def requests(self, source: Source) -> Iterator[dict[str, Any]]:
        """A request for each row. Raises UsageError, DataInvalid with the row's number."""
        ids = RowIds(self.id_column)
        fixed = {**({} if self.model is None else {"model": self.model}), **self.params}
        for number, row in enumerate(rows_of(source), 1):
            if "body" in row and "url" in row:
                yield self._ready(row, fixed, number)
                continue
            if self.model is None:
                raise UsageError("Say which model is to answer: model=…")
            url, asked = self._asked(row, number)
            yield request(id_of(row, number, ids), url, fixed | asked)

    def _ready(self, row: dict[str, Any], fixed: dict[str, Any], number: int) -> dict[str, Any]:
        if self.template is not None or self.system is not None:
            raise UsageError(
                "The rows are whole requests (they have url and body), so a template has no place."
            )
        if not isinstance(row["body"], dict):
            raise DataInvalid(f"Row {number}: its body is no object but {str(row['body'])[:60]!r}.")
        # A copy: the rows may be the caller's own, to be submitted again to another model.
        made = {**row, "body": fixed | row["body"]}
        made.setdefault("method", "POST")
        made.setdefault("custom_id", f"row-{number}")
        return made

    def _asked(self, row: Mapping[str, Any], number: int) -> tuple[str, dict[str, Any]]:
        """(url, the part of the body that is the row's own)."""
        if self.template is not None:
            url = self.endpoint or CHAT_URL
            if url == EMBEDDINGS_URL:
                return url, {"input": self.template.render(row, number=number)}
            prompt = Prompt(self.template, self.system, chat=url == CHAT_URL)
            return url, prompt.body(row, number=number)
        if self.endpoint == SCORE_URL:
            asked = {name: row[name] for name in _SCORE_FIELDS if row.get(name) is not None}
            return SCORE_URL, asked
        # The endpoint's own column first: a row may have one for another endpoint beside it.
        candidates = sorted(_BY_COLUMN, key=lambda name: _BY_COLUMN[name] != self.endpoint)
        found = next((name for name in candidates if row.get(name) is not None), None)
        if found is None:
            raise DataInvalid(
                f"Row {number} has the columns {names(row)}, and none of messages, prompt and "
                'input. Say how they become a prompt: template="… {column} …".'
            )
        url = self.endpoint or _BY_COLUMN[found]
        value = row[found]
        if url != CHAT_URL:
            return url, {"input" if url == EMBEDDINGS_URL else "prompt": value}
        messages = value if found == "messages" else [{"role": "user", "content": value}]
        if self.system is not None:
            text = self.system.render(row, number=number)
            messages = [{"role": "system", "content": text}, *messages]
        return url, {"messages": messages}


def id_of(row: Mapping[str, Any], number: int, ids: RowIds) -> str:
    """A row's custom_id: of the column that was named, else its own, else its place."""
    own = row.get("custom_id") if ids.column is None else None
    return own if isinstance(own, str) and own else ids.of(row, number)


def rows_of(source: Source) -> Iterator[dict[str, Any]]:
    """The rows; texts alone are what users say."""
    if isinstance(source, (str, os.PathLike)):
        return read_rows(str(source) if isinstance(source, str) else Path(source))
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        return read_rows(source)
    if type(source).__module__.partition(".")[0] in ("pandas", "polars", "pyarrow"):
        return read_rows(source)
    given = iter(source)
    first = list(_take_one(given))
    if first and isinstance(first[0], str):
        return ({"messages": [{"role": "user", "content": text}]} for text in chain(first, given))
    return read_rows(chain(first, given))


def _take_one(given: Iterator[Any]) -> Iterator[Any]:
    for one in given:
        yield one
        return


@dataclass(frozen=True, slots=True)
class Part:
    """A file that is the input of one batch."""

    path: Path
    endpoint: str
    num_rows: int


def ready_file(source: object, recipe: Recipe, *, max_rows: int, max_bytes: int) -> Part | None:
    """The source itself, if it is a file that can go up as it is."""
    if not isinstance(source, (str, os.PathLike)) or recipe.params or recipe.template is not None:
        return None
    path = Path(source)
    if path.suffix != ".jsonl" or not path.is_file() or path.stat().st_size > max_bytes:
        return None
    num_rows = 0
    with path.open("rb") as file:
        try:
            first = msgspec.json.decode(file.readline(1 << 24))
            model = first["body"].get("model")
            url = first["url"]
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
            return None
        if recipe.model not in (None, model) or recipe.system is not None:
            return None
        file.seek(0)
        while chunk := file.read(1 << 20):
            num_rows += chunk.count(b"\n")
    return Part(path, str(url), num_rows) if num_rows <= max_rows else None


class Spool:
    """Writes lines to files of a bounded size, one after the other."""

    def __init__(
        self, requests: Iterator[dict[str, Any]], folder: Path, *, max_rows: int, max_bytes: int
    ) -> None:
        self._requests = requests
        self._folder = folder
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._encoder = msgspec.json.Encoder(enc_hook=plain)
        self._number = 0
        self._held: tuple[bytes, str] | None = None

    def next(self) -> Part | None:
        """The next file; None when all rows are written. Raises UsageError, DataInvalid."""
        self._held = self._held or self._next_line()
        if self._held is None:
            return None
        endpoint = self._held[1]
        path = self._folder / f"part-{self._number}.jsonl"
        num_rows = num_bytes = 0
        with path.open("wb") as file:
            while self._held is not None and num_rows < self._max_rows:
                line, url = self._held
                if num_bytes + len(line) > self._max_bytes and num_rows:
                    break
                if url != endpoint:
                    raise DataInvalid(
                        f"Some rows are for {endpoint} and some for {url}. A batch has one "
                        "endpoint: give endpoint=… or submit them apart."
                    )
                file.write(line)
                num_rows += 1
                num_bytes += len(line)
                self._held = self._next_line()
        self._number += 1
        return Part(path, endpoint, num_rows)

    def _next_line(self) -> tuple[bytes, str] | None:
        made = next(self._requests, None)
        if made is None:
            return None
        try:
            return self._encoder.encode(made) + b"\n", made["url"]
        except (TypeError, ValueError, UnicodeEncodeError) as error:
            raise DataInvalid(
                f"The row {made['custom_id']!r} cannot be written as JSON: {error}."
            ) from error
