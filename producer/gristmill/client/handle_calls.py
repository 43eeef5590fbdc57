"""What a handle does with all its batches at once, as Steps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.client.errors import APIStatusError
from gristmill.client.estimates import EstimateCalls
from gristmill.client.more_objects import Estimate
from gristmill.client.objects import Batch
from gristmill.client.result_files import ResultFiles, fetch_results
from gristmill.client.state import BatchState, look
from gristmill.client.steps import Steps, Work
from gristmill.client.submit import new_webhook_secret
from gristmill.client.tables import column_types, joined_rows, table_rows
from gristmill.client.transfer import OnBytes
from gristmill.data.formats import Format, kind_of
from gristmill.data.write import write_rows
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.client.batches import BatchCalls

#: Tells a folder of a download from one that is somebody's own.
_MARKER = ".gristmill-download"


def cancel_all(calls: BatchCalls, batch_ids: list[str]) -> Steps[BatchState]:
    """Those that have ended already stay as they are."""
    for batch_id in batch_ids:
        try:
            yield from calls.cancel(batch_id, {})
        except APIStatusError as error:
            if error.code != "batch_not_cancellable" or len(batch_ids) == 1:
                raise
    return (yield from look(calls, batch_ids))


def estimate_all(calls: BatchCalls, batch_ids: list[str]) -> Steps[Estimate]:
    state = yield from look(calls, batch_ids)
    files = [(part.input_file_id, part.endpoint) for part in state.parts]
    return (yield from EstimateCalls(calls.caller).made(files))


def tell_all(calls: BatchCalls, batch_ids: list[str], url: str, secret: str | None) -> Steps[str]:
    """The secret that signs what is told of any of them."""
    secret = secret or new_webhook_secret()
    for batch_id in batch_ids:
        yield from calls.on_done(batch_id, {"webhook_url": url, "webhook_secret": secret}, {})
    return secret


def retry_all(calls: BatchCalls, batch_ids: list[str]) -> Steps[list[Batch]]:
    made = []
    for batch_id in batch_ids:
        try:
            made.append((yield from calls.retry(batch_id, {})))
        except APIStatusError as error:
            if error.code != "nothing_to_retry":
                raise
    if not made:
        raise UsageError("Every row has an answer, so there is nothing to run again.")
    return made


def write_results(
    calls: BatchCalls,
    batch_ids: list[str],
    path: Path,
    *,
    join: Any = None,
    id_column: str | None = None,
    on_bytes: OnBytes | None = None,
) -> Steps[int]:
    """All rows into a file of the format that its name says, and how many there were.

    What was fetched lies in `NAME.parts` until all is done, so that another try, of another
    process too, goes on from there. With `join`, a data set, each of its rows has its result
    behind. Raises UsageError, DataInvalid, BatchFailed, APIError.
    """
    kind = kind_of(path.name)
    if not path.parent.is_dir():
        raise UsageError(
            f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}."
        )
    folder = _parts_folder(path)
    files: list[ResultFiles] = []
    for batch_id in batch_ids:
        files.append((yield from fetch_results(calls, batch_id, folder, on_bytes=on_bytes)))

    def write() -> int:
        lines: Iterator[dict[str, Any]] = chain.from_iterable(one.lines() for one in files)
        rows = lines
        if join is not None:
            rows = joined_rows(join, lines, id_column=id_column)
        elif kind.format is not Format.JSONL:
            rows = table_rows(lines)
        has_types = kind.format in (Format.PARQUET, Format.ARROW)
        return write_rows(path, rows, types=column_types() if has_types else None)

    num_rows: int = yield Work(write)
    shutil.rmtree(folder)
    return num_rows


def _parts_folder(path: Path) -> Path:
    """Where the files lie that are fetched for `path`; it is removed in the end."""
    folder = path.with_name(f"{path.name}.parts")
    is_ours = (folder / _MARKER).is_file()
    if folder.exists() and not is_ours and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{str(folder)!r} is there and holds other things than a download, which needs that "
            "folder for a while. Move it, or give the results another name."
        )
    folder.mkdir(exist_ok=True)
    (folder / _MARKER).touch()
    return folder


def parquet_path(path: str | os.PathLike[str]) -> Path:
    if Path(path).suffix not in (".parquet", ".pq"):
        raise UsageError(f"{str(path)!r} is no name of a Parquet file: let it end in .parquet.")
    return Path(path)
