"""Rows of any kind become files, the files one batch each: all files first, then all batches."""

from __future__ import annotations

import base64
import secrets
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gristmill.client.errors import APIError
from gristmill.client.estimates import EstimateCalls
from gristmill.client.more_objects import Estimate
from gristmill.client.objects import Batch
from gristmill.client.rows import Part, Recipe, Spool, ready_file
from gristmill.client.steps import Steps, Work
from gristmill.client.transfer import OnBytes
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.client.batches import BatchCalls

#: Defaults of the caps on one batch; a service may allow less or more.
MAX_ROWS = 1_000_000
MAX_BYTES = 4 * 2**30
#: What the parts of one submission carry in their metadata.
SUBMISSION, PART = "gristmill_submission", "gristmill_part"


@dataclass(frozen=True, slots=True)
class Source:
    """Rows, how they become requests, and how much one file may hold."""

    rows: Any
    recipe: Recipe
    max_rows: int = MAX_ROWS
    max_bytes: int = MAX_BYTES
    on_bytes: OnBytes | None = None

    def __post_init__(self) -> None:
        if self.max_rows < 1 or self.max_bytes < 1:
            raise UsageError("A batch has at least one row and one byte: look at the caps given.")


@dataclass(frozen=True, slots=True)
class Uploaded:
    file_id: str
    endpoint: str
    num_rows: int


def upload(calls: BatchCalls, source: Source) -> Steps[list[Uploaded]]:
    """All rows as one or several files. Raises UsageError, DataInvalid, APIError."""
    made: list[Uploaded] = []
    caps = {"max_rows": source.max_rows, "max_bytes": source.max_bytes}
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        ready = yield Work(partial(ready_file, source.rows, source.recipe, **caps))
        if ready is not None:
            return [(yield from _upload_one(calls, ready, source))]
        spool = Spool(source.recipe.requests(source.rows), Path(folder), **caps)
        while (part := (yield Work(spool.next))) is not None:
            made.append((yield from _upload_one(calls, part, source)))
            part.path.unlink()
    if not made:
        raise UsageError("There are no rows, so there is nothing to do.")
    return made


def _upload_one(calls: BatchCalls, part: Part, source: Source) -> Steps[Uploaded]:
    file = yield from calls.files.create(part.path, "batch", None, {}, on_bytes=source.on_bytes)
    return Uploaded(file.id, part.endpoint, part.num_rows)


def submit(calls: BatchCalls, source: Source, body: Mapping[str, object]) -> Steps[list[Batch]]:
    """A batch of each file, in the order of the rows. Nothing runs before every row was read.

    `body` has the other fields of the request that creates a batch. When one of several cannot be
    created, those that were are cancelled, as far as that is possible. Raises UsageError,
    DataInvalid, APIError.
    """
    files = yield from upload(calls, source)
    token = uuid.uuid4().hex
    made: list[Batch] = []
    try:
        for number, file in enumerate(files, 1):
            given = {**body, "input_file_id": file.file_id, "endpoint": file.endpoint}
            if len(files) > 1:
                metadata = dict(cast(Mapping[str, str], body.get("metadata") or {}))
                given["metadata"] = metadata | {
                    SUBMISSION: token,
                    PART: f"{number}/{len(files)}",
                }
            made.append((yield from calls.create(given, {})))
    except APIError:
        for batch in made:
            # One that has ended already keeps neither the others running nor the error hidden.
            with suppress(APIError):
                yield from calls.cancel(batch.id, {})
        raise
    return made


def batch_fields(
    *,
    completion_window: str,
    metadata: Mapping[str, str] | None,
    output_expires_after: Mapping[str, object] | None,
    priority: int | None,
    max_total_tokens: int | None,
    max_cost: float | None,
    webhook_url: str | None,
    webhook_secret: str | None,
    extra_body: Mapping[str, object] | None,
) -> dict[str, object]:
    """What a batch is created with, beside its file. All its parts sign with one secret."""
    if webhook_url is not None and webhook_secret is None:
        webhook_secret = new_webhook_secret()
    return {
        "completion_window": completion_window,
        "metadata": metadata,
        "output_expires_after": output_expires_after,
        "priority": priority,
        "max_total_tokens": max_total_tokens,
        "max_cost": None if max_cost is None else float(max_cost),
        "webhook_url": webhook_url,
        "webhook_secret": webhook_secret,
        **(extra_body or {}),
    }


def new_webhook_secret() -> str:
    """`whsec_` and the base64 of 32 random bytes, as Standard Webhooks wants it."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def estimate(calls: BatchCalls, source: Source) -> Steps[Estimate]:
    """What a batch of these rows would take. The files that this needs are deleted again."""
    files = yield from upload(calls, source)
    asked = [(file.file_id, file.endpoint) for file in files]
    try:
        made = yield from EstimateCalls(calls.caller).made(asked)
    except APIError:
        yield from _delete_all(calls, files)
        raise
    yield from _delete_all(calls, files)
    return made


def _delete_all(calls: BatchCalls, files: list[Uploaded]) -> Steps[None]:
    for file in files:
        yield from calls.files.delete(file.file_id, {})
