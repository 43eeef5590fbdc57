"""An input file as a whole: its lines, the ids it has used, every reason to fail its batch.

It reads on after the first bad line, so that a caller learns of all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from gristmill.errors import BatchInvalid, LineError, UsageError
from gristmill.models import Model
from gristmill.requests.envelope import BadLine, Envelopes, Request
from gristmill.requests.reader import Line, read_lines
from gristmill.requests.seen import SeenIds
from gristmill.settings import Settings
from gristmill.types import Endpoint, kind_of

#: A stretch is closed by the first of these.
STRETCH_MAX_BYTES = 4 * 2**20
STRETCH_MAX_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place between two lines: what lies before it, counted. Blank lines are no rows."""

    byte_offset: int = 0
    line_no: int = 0
    row_idx: int = 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive requests of a file, the first of which is row `start_idx`."""

    endpoint: Endpoint
    start_idx: int
    requests: list[Request]
    cursor: Cursor


class _Known(msgspec.Struct):
    """All that is read of a line that an earlier pass over the file has found good."""

    custom_id: str
    url: str
    body: msgspec.Raw = msgspec.Raw()


class InputFile:
    """One pass over `source`. With `endpoint` None the first line that names one decides."""

    def __init__(
        self, source: BinaryIO, *, model: Model, settings: Settings, endpoint: Endpoint | None
    ) -> None:
        self._model = model
        self._settings = settings
        self._lines = read_lines(source, max_line_bytes=settings.max_line_bytes)
        self._envelopes = Envelopes(
            model=model, endpoint=endpoint, max_line_bytes=settings.max_line_bytes
        )
        self._seen = SeenIds()
        self._num_rows = 0
        #: Of embeddings: a row may have many.
        self._num_inputs = 0
        self._errors: list[LineError] = []
        self._num_errors = 0

    def stretches(self, *, start: Cursor) -> Iterator[Stretch]:
        """The requests behind `start`; none from the stretch on that holds the first bad line.

        Raises BatchInvalid at the end of the file if anything in it fails the batch.
        """
        self._skip_to(start)
        for lines in self._bounded_lines():
            requests = self._check(lines)
            if self._num_errors or self._num_rows > self._settings.max_rows:
                continue  # the file is refused, only its other errors are of interest now
            assert self._envelopes.endpoint is not None, "a good line names an endpoint"
            cursor = Cursor(lines[-1].end, lines[-1].number, self._num_rows)
            yield Stretch(
                self._envelopes.endpoint, self._num_rows - len(requests), requests, cursor
            )
        self._raise_if_invalid()

    def close(self) -> None:
        self._seen.close()

    def _skip_to(self, start: Cursor) -> None:
        """Learns the ids of the lines before `start`, which an earlier pass has found good."""
        if not start.byte_offset:
            return
        decode = msgspec.json.Decoder(_Known).decode
        ids: list[tuple[str, int]] = []
        for line in self._lines:
            if line.content:
                try:
                    known = decode(line.content)
                    self._envelopes.accept(known.url)
                    if known.url == Endpoint.EMBEDDINGS:
                        self._num_inputs += num_inputs(msgspec.json.decode(known.body))
                except (msgspec.MsgspecError, ValueError) as error:
                    raise _another_file(start) from error
                ids.append((known.custom_id, line.number))
            if len(ids) == STRETCH_MAX_ROWS or line.end == start.byte_offset:
                self._seen.add(ids)
                ids = []
            if line.end == start.byte_offset:
                self._num_rows = start.row_idx
                return
        raise _another_file(start)

    def _bounded_lines(self) -> Iterator[list[Line]]:
        """The lines that are not blank, in lists of bounded size."""
        lines: list[Line] = []
        num_bytes = 0
        for line in self._lines:
            if line.content == b"":
                continue
            lines.append(line)
            num_bytes += len(line.content or b"")
            if num_bytes >= STRETCH_MAX_BYTES or len(lines) == STRETCH_MAX_ROWS:
                yield lines
                lines, num_bytes = [], 0
        if lines:
            yield lines

    def _check(self, lines: list[Line]) -> list[Request]:
        """The requests of the good lines. Each bad line is reported once."""
        requests: list[Request] = []
        errors: dict[int, LineError] = {}
        ids: list[tuple[str, int]] = []
        for line in lines:
            found = self._envelopes.read(line)
            if isinstance(found, BadLine):
                errors[line.number] = found.error
            else:
                requests.append(found)
                if self._envelopes.endpoint is Endpoint.EMBEDDINGS:
                    self._num_inputs += num_inputs(found.body)
            if found.custom_id is not None:
                ids.append((found.custom_id, line.number))
        for line_no, custom_id, first in self._seen.add(ids):
            errors.setdefault(line_no, _duplicate(line_no, custom_id, first))
        if not self._num_rows and (problem := self._not_served()):
            # Said once for the file: every row of it would be refused for this same reason.
            errors.setdefault(
                lines[0].number, LineError("invalid_request", problem, lines[0].number, "url")
            )
        self._num_rows += len(lines)
        for line_no in sorted(errors):
            self._report(errors[line_no])
        return requests

    def _not_served(self) -> str:
        """Why the model cannot serve the endpoint of the file; empty where it can."""
        endpoint, model = self._envelopes.endpoint, self._model
        if endpoint is None:
            return ""
        if kind_of(endpoint) not in model.kinds:
            if endpoint is Endpoint.EMBEDDINGS:
                why = f"its vectors are not known: {model.embedding.unsupported}"
                return f"{model.name} cannot serve {endpoint}, since {why}. Use another model."
            return (
                f"{model.name} only makes vectors, so {endpoint} cannot be served. Use "
                f"{Endpoint.EMBEDDINGS}, or a model that generates."
            )
        if endpoint is Endpoint.CHAT and not model.has_chat_template:
            return (
                f"{model.name} has no chat template, so {endpoint} cannot be served. Use "
                f"{Endpoint.COMPLETIONS}, or put a chat_template.jinja into the folder of the "
                "model."
            )
        return ""

    def _report(self, error: LineError) -> None:
        self._num_errors += 1
        if len(self._errors) < self._settings.max_errors_shown:
            self._errors.append(error)

    def _raise_if_invalid(self) -> None:
        limit = self._settings.max_rows
        if self._num_rows > limit:
            self._report(
                LineError(
                    "too_many_tasks",
                    f"The file has {self._num_rows} requests, a batch has at most {limit}. Split "
                    "it, or raise GRISTMILL_MAX_ROWS.",
                )
            )
        limit = self._settings.max_embedding_inputs
        if self._num_inputs > limit:
            self._report(
                LineError(
                    "too_many_tasks",
                    f"The file has {self._num_inputs} inputs to embed, a batch has at most "
                    f"{limit}. Split it, or raise GRISTMILL_MAX_EMBEDDING_INPUTS.",
                )
            )
        if not self._num_rows:
            self._report(
                LineError("empty_batch", "The file has no requests. Write one on each line.")
            )
        if self._num_errors:
            raise BatchInvalid(self._errors, self._num_errors)


def num_inputs(body: Mapping[str, Any]) -> int:
    """How many vectors the body of an embedding asks for, if it is in order."""
    value = body.get("input")
    is_several = type(value) is list and value and type(value[0]) is not int
    return len(value) if is_several else 1  # type: ignore[arg-type]


def _duplicate(line_no: int, custom_id: str, first: int) -> LineError:
    return LineError(
        "duplicate_custom_id",
        f'The custom_id "{custom_id}" is already that of line {first}. Give each request its own.',
        line_no,
        "custom_id",
    )


def _another_file(start: Cursor) -> UsageError:
    return UsageError(
        f"An earlier pass stopped at byte {start.byte_offset} of the input, behind good lines. "
        "What is there now is not the same file. Start anew."
    )
