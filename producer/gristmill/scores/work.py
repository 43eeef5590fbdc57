"""The work folder of a scoring: what it needs to go on after an interruption."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from gristmill.data.join import check_no_clash
from gristmill.data.json_lines import plain
from gristmill.data.prompts import RowIds, request
from gristmill.data.rows import Row, Source, read_rows
from gristmill.data.write import write_rows
from gristmill.errors import UsageError
from gristmill.folder_lock import FolderLock
from gristmill.scores.task import Task

_MARKER = ".gristmill-score"


@contextmanager
def work_folder(path: Path) -> Iterator[Path]:
    """The folder, locked; it is removed when the block ends without an error.

    Raises UsageError for a folder with other things in it, and for one that is in use.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())) and not _is_ours(path):
        raise UsageError(
            f"{path} is there and holds other things than a scoring. Name another work folder."
        )
    lock = FolderLock(
        path, taken=f"Another process is scoring in {path}. Wait for it, or name another folder."
    )
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / _MARKER).touch()
        lock.take()
    except OSError as error:
        raise UsageError(f"The work folder {path} cannot be used: {error}.") from error
    try:
        yield path
        shutil.rmtree(path, ignore_errors=True)
    finally:
        lock.drop()


def _is_ours(path: Path) -> bool:
    return (path / _MARKER).is_file()


class Rows:
    """A data set that is read twice. What can be read once only is copied into the folder."""

    def __init__(self, source: Source, folder: Path, *, limit: int | None) -> None:
        self._limit = limit
        self._source = source
        if _is_read_once(source):
            self._source = folder / "rows.jsonl"
            write_rows(self._source, islice(read_rows(source), limit))

    def __iter__(self) -> Iterator[Row]:
        return islice(read_rows(self._source), self._limit)


def _is_read_once(source: Any) -> bool:
    return str(source) == "-" if isinstance(source, str | Path) else hasattr(source, "__next__")


def write_requests(
    path: Path, rows: Rows, task: Task, *, model: str, ids: RowIds, added: Iterable[str]
) -> int:
    """A line for each row; returns how many. The same rows and task give the same file.

    Raises DataInvalid for the first row that the task cannot ask about, or that has a column of a
    name that is to be `added`; UsageError for no rows.
    """
    encoder = msgspec.json.Encoder(enc_hook=plain)
    number = 0
    with path.open("wb") as lines:
        for number, row in enumerate(rows, 1):
            if number == 1:
                check_no_clash(row, added)
            body = {"model": model, **task.body(row, number)}
            lines.write(encoder.encode(request(ids.of(row, number), task.url, body)) + b"\n")
    if not number:
        raise UsageError("The data set has no rows, so there is nothing to score.")
    return number
