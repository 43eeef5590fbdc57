"""The result files of batches that have ended: fetched, checked, and read in the input's order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.client.errors import BatchFailed, NotFoundError
from gristmill.client.objects import Batch
from gristmill.client.steps import Sleep, Steps
from gristmill.client.transfer import OnBytes
from gristmill.data.join import merged_by
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.client.batches import BatchCalls

#: Between two looks at a batch; each look that finds nothing new makes it longer.
FIRST_POLL_S, MAX_POLL_S = 0.25, 10.0
_BOM = b"\xef\xbb\xbf"


class _IdOnly(msgspec.Struct):
    custom_id: str


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Local copies. `input` is there only where it is needed: with answers and errors both."""

    batch: Batch
    results: tuple[Path, ...]
    input: Path | None

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every row's line, in the order of the input.

        Rows of the input may have none: a retry runs again only those that had no answer.
        """
        if self.input is None:
            for path in self.results:
                yield from read_lines(path)
            return
        ids = (line.custom_id for line in read_lines(self.input, _IdOnly))
        for line in merged_by(ids, *map(read_lines, self.results)):
            yield dict(line)


def fetch_results(
    calls: BatchCalls, batch_id: str, folder: Path, *, on_bytes: OnBytes | None = None
) -> Steps[ResultFiles]:
    """Wait for the end of a batch and fetch its files. One that is there already is taken.

    Raises BatchFailed, UsageError when the input is gone and needed, APIError.
    """
    batch = yield from ended(calls, batch_id)
    paths = []
    for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
        path = folder / file_id
        if not path.exists():
            yield from calls.files.download(file_id, path, {}, on_bytes=on_bytes)
        paths.append(path)
    input_path = None
    if len(paths) == 2:
        input_path = folder / batch.input_file_id
        if not input_path.exists():
            yield from _fetch_input(calls, batch, input_path)
    return ResultFiles(batch, tuple(paths), input_path)


def ended(calls: BatchCalls, batch_id: str) -> Steps[Batch]:
    """The batch as soon as it has ended. Raises BatchFailed when it failed validation."""
    poll_s = FIRST_POLL_S
    while True:
        batch = yield from calls.retrieve(batch_id, {})
        refuse_failed(batch)
        if batch.has_ended:
            return batch
        yield Sleep(poll_s)
        poll_s = min(poll_s * 1.5, MAX_POLL_S)


def refuse_failed(batch: Batch) -> None:
    if batch.status == "failed":
        raise BatchFailed(batch.id, batch.errors.data if batch.errors else ())


def read_lines(path: Path, kind: Any = Any) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for raw in file:
            # An input file may begin with a mark of its encoding, and have blank lines.
            if text := raw.removeprefix(_BOM).strip():
                yield decoder.decode(text)


def _fetch_input(calls: BatchCalls, batch: Batch, path: Path) -> Steps[None]:
    """Answers and errors are two files: only the input tells how they follow each other."""
    try:
        yield from calls.files.download(batch.input_file_id, path, {})
    except NotFoundError as error:
        raise UsageError(
            f"The input file {batch.input_file_id} is gone, which has the order of the rows. "
            "Read them with ordered=False."
        ) from error
