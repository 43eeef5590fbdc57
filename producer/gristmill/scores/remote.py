"""Answers the requests of a scored data set by batches of a service, through its API."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.errors import BatchInvalid, GristmillError, LineError
from gristmill.progress import Progress
from gristmill.scores.answer import Answered, Interrupted, never, nothing

if TYPE_CHECKING:
    from gristmill.client import Batch, BatchHandle, BatchState, Client

_FIRST_POLL_S, _MAX_POLL_S = 0.25, 10.0
#: How soon a wait notices that it is to stop.
_STEP_S = 0.2


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
        handle = self._find_or_submit(requests, folder / "batches.json")
        batches = self._wait(handle)
        answered = Answered(folder / "answers.jsonl", folder / "answers.errors.jsonl")
        self._download([batch.output_file_id for batch in batches], answered.answers)
        self._download([batch.error_file_id for batch in batches], answered.errors)
        return answered

    def _find_or_submit(self, requests: Path, noted: Path) -> BatchHandle:
        with requests.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        if noted.is_file():
            note = json.loads(noted.read_text())
            if note["sha256"] == content:
                return self.client.handle(*note["batch_ids"])
        handle = self.client.submit(requests)
        noted.write_text(json.dumps({"sha256": content, "batch_ids": list(handle.ids)}))
        return handle

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
        for batch in state.parts:
            if batch.status == "failed":
                raise _invalid(batch)
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
