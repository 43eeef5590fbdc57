"""Answers the requests of a scored data set by batches of a service, through its API."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.data.places import open_to_write
from gristmill.errors import BatchInvalid, GristmillError, LineError
from gristmill.progress import Progress
from gristmill.scores.answer import Answered, Interrupted, never, nothing

if TYPE_CHECKING:
    from gristmill.client import Batch, BatchHandle, BatchState, Client

_FIRST_POLL_S, _MAX_POLL_S = 0.25, 10.0
#: How soon a wait notices that it is to stop.
_STEP_S = 0.2
#: What the batches of a scoring carry in their metadata.
_SCORING = "gristmill_scoring"
#: How far the clocks of the service and of this machine may be apart.
_MAX_SKEW_S = 86400


@dataclass(frozen=True, slots=True)
class _Note:
    """What is known of the batches of a scoring. Without ids they may be there nevertheless.

    Written before they are created, so that whoever goes on after an interruption finds them.
    """

    sha256: str
    token: str
    noted_at: int
    batch_ids: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        with open_to_write(path) as file:
            file.write(json.dumps(asdict(self)).encode())


@dataclass(frozen=True, slots=True)
class Remote:
    """`model` is what the service calls it. Waiting may be stopped; the batches go on, and the same
    call waits for them again."""

    model: str
    client: Client
    on_progress: Callable[[Progress], None] = field(default=nothing)
    should_stop: Callable[[], bool] = field(default=never)

    def answer(self, requests: Path, folder: Path, *, url: str) -> Answered:
        """As the protocol has it. Raises BatchInvalid, APIError."""
        noted = folder / "batches.json"
        batches = self._wait(self._find_or_submit(requests, noted))
        for batch in batches:
            if batch.status == "failed":
                noted.unlink()  # What was wrong may be mended: the next call submits again.
                raise _invalid(batch)
        answered = Answered(folder / "answers.jsonl", folder / "answers.errors.jsonl")
        self._download([batch.output_file_id for batch in batches], answered.answers)
        self._download([batch.error_file_id for batch in batches], answered.errors)
        return answered

    def _find_or_submit(self, requests: Path, noted: Path) -> BatchHandle:
        with requests.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        note = _read_note(noted)
        if note is None or note.sha256 != content:
            note = None
        elif batch_ids := note.batch_ids or self._created(note):
            replace(note, batch_ids=batch_ids).write(noted)
            return self.client.handle(*batch_ids)
        note = _Note(content, uuid.uuid4().hex, int(time.time()))
        note.write(noted)
        handle = self.client.submit(requests, metadata={_SCORING: note.token})
        replace(note, batch_ids=tuple(handle.ids)).write(noted)
        return handle

    def _created(self, note: _Note) -> tuple[str, ...]:
        """The batches of an interrupted submission, if all were created; else they are ended."""
        from gristmill.client import APIError

        found = []
        for batch in self.client.batches.list(limit=100):  # the newest first
            if batch.created_at < note.noted_at - _MAX_SKEW_S:
                break
            if (batch.metadata or {}).get(_SCORING) == note.token:
                found.append(batch)
        if _are_whole(found):
            return tuple(batch.id for batch in sorted(found, key=_part))
        for batch in found:
            with suppress(APIError):  # such as for one that has ended
                self.client.batches.cancel(batch.id)
        return ()

    def _wait(self, handle: BatchHandle) -> tuple[Batch, ...]:
        poll_s = _FIRST_POLL_S
        while True:
            state = handle.status()
            self.on_progress(_progress_of(state))
            if state.has_ended:
                break
            until = time.monotonic() + poll_s
            while (left_s := until - time.monotonic()) > 0:
                if self.should_stop():
                    raise Interrupted(
                        f"Stopped waiting for {', '.join(handle.ids)}, which goes on. The same "
                        "call waits for it again."
                    )
                time.sleep(min(left_s, _STEP_S))
            poll_s = min(poll_s * 1.5, _MAX_POLL_S)
        return tuple(state.parts)

    def _download(self, file_ids: list[str | None], path: Path) -> None:
        """The files one after the other; none where the service has none."""
        path.unlink(missing_ok=True)
        found = [file_id for file_id in file_ids if file_id]
        if not found:
            return
        with path.open("wb") as whole:
            for file_id in found:
                piece = path.with_name(f"{file_id}.jsonl")
                self.client.files.download(file_id, piece)
                with piece.open("rb") as content:
                    while chunk := content.read(1 << 20):
                        whole.write(chunk)
                piece.unlink()


def _read_note(path: Path) -> _Note | None:
    try:
        found = json.loads(path.read_bytes())
        return _Note(**{**found, "batch_ids": tuple(found["batch_ids"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _part(batch: Batch) -> tuple[int, int]:
    """(number, of how many), as the client notes it where there are several."""
    from gristmill.client.submit import PART

    number, _, count = (batch.metadata or {}).get(PART, "1/1").partition("/")
    return int(number), int(count)


def _are_whole(batches: Sequence[Batch]) -> bool:
    """Whether they are all parts of a submission, and none was given up."""
    if any(batch.status in ("failed", "cancelling", "cancelled") for batch in batches):
        return False
    parts = sorted(map(_part, batches))
    return bool(parts) and parts == [(i, len(parts)) for i in range(1, len(parts) + 1)]


def _invalid(batch: Batch) -> GristmillError:
    found = batch.errors.data if batch.errors else []
    if not found:
        return GristmillError(f"The service failed the batch {batch.id} without a reason.")
    lines = [LineError(one.code or "invalid", one.message, one.line, one.param) for one in found]
    return BatchInvalid(lines, len(lines))


def _progress_of(state: BatchState) -> Progress:
    return Progress(
        phase="running",
        total=state.total,
        completed=state.completed,
        failed=state.failed,
        generated_tokens=0,
        tokens_per_s=0.0,
        eta_s=None,
        bytes_read=0,
        bytes_total=0,
    )
