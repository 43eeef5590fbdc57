"""What the tests of the pipeline share: stores that fail, batches made by hand."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fake_engine import Clock, fake_text, fake_tokens

from gristmill.compute import WorkerConfig
from gristmill.control import ingest
from gristmill.control.base import Control, read_batch
from gristmill.errors import KeyNotFound
from gristmill.ledger.batch import Batch
from gristmill.ledger.ledger import open_sqlite
from gristmill.queues.memory import MemoryQueue
from gristmill.requests.prepare import Cursor, Refusal, Window
from gristmill.settings import Settings
from gristmill.stores.base import Store
from gristmill.stores.keys import file_key
from gristmill.stores.local import LocalStore
from gristmill.types import (
    Choice,
    Endpoint,
    FinishReason,
    Job,
    ModelPin,
    Prompt,
    Row,
    RowError,
    RowResult,
    SamplingParams,
    Segment,
    ShardPointer,
    Usage,
)

PIN = ModelPin("fake", "0123456789abcdef", "tok", "float32")
TENANT = "acme"
BATCH = "batch_1"


@contextmanager
def fast_folder() -> Iterator[Path]:
    """A folder that lasts for a test, in memory where there is such a place: fsync is slow."""
    shm = "/dev/shm"
    with TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as folder:
        yield Path(folder)


# ---------------------------------------------------------------------------- stores


class MemoryStore:
    """A Store in a dict, which also remembers the order of what was done."""

    def __init__(self, journal: list[str] | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self.journal = journal if journal is not None else []

    def put(self, key: str, body: bytes) -> None:
        self.objects[key] = body
        self.journal.append(f"put {key}")

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> int:
        body = b"".join(chunks)
        self.put(key, body)
        return len(body)

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise KeyNotFound(key) from None

    def open(self, key: str) -> Any:
        return io.BytesIO(self.get(key))

    def list(self, prefix: str) -> Iterator[str]:
        return iter(sorted(key for key in self.objects if key.startswith(prefix)))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def remove_unfinished(self, older_than_s: float) -> int:
        return 0


class Crash(BaseException):
    """The process dies here. Nothing catches it."""


class CrashingStore:
    """Dies in the k-th operation, before or after it took effect."""

    def __init__(self, store: Store, *, crash_at: int, after: bool) -> None:
        self._store = store
        self._crash_at = crash_at
        self._after = after
        self.num_operations = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def operation(*args: Any) -> Any:
            self.num_operations += 1
            dies = self.num_operations == self._crash_at
            if dies and not self._after:
                raise Crash
            outcome = getattr(self._store, name)(*args)
            if dies:
                raise Crash
            return outcome

        return operation


# ---------------------------------------------------------------------------- the Engine


def make_job(*idxs: int, prompt: Sequence[int] = (), max_tokens: int = 20) -> Job:
    """A Job for the rows `idxs`."""
    rows = tuple(Row(idx, f"row-{idx}") for idx in idxs)
    prompts = (Prompt(tuple(prompt) or (1, idxs[0])),)
    return Job(rows, prompts, SamplingParams(max_tokens))


def make_refusal(idx: int) -> Refusal:
    error = RowError("invalid_request", "`echo` is not supported.", "echo", 400)
    return Refusal(Row(idx, f"row-{idx}"), error, idx + 1)


def make_windows(*windows: Iterable[Job | Refusal]) -> list[Window]:
    """Windows as `prepare` yields them; rows are counted through."""
    made, row_idx = [], 0
    for items in windows:
        items = list(items)
        jobs = tuple(item for item in items if isinstance(item, Job))
        refused = tuple(item for item in items if isinstance(item, Refusal))
        num_rows = sum(len(job.rows) for job in jobs) + len(refused)
        row_idx += num_rows
        cursor = Cursor(row_idx * 100, row_idx, row_idx)
        made.append(Window(Endpoint.CHAT, jobs, refused, num_rows, 0, cursor))
    return made


@dataclass
class Bench:
    """A control side on a work folder, whose parts can be swapped."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    settings: Settings = field(default_factory=lambda: Settings(shard_max_jobs=3))
    batch_id: str = BATCH

    def __post_init__(self) -> None:
        self.ledger = open_sqlite(self.folder / "ledger.sqlite")
        self.store: Any = LocalStore(self.folder / "store")
        self.queue: Any = MemoryQueue(self.settings.lease_s, self.clock)

    @property
    def control(self) -> Control:
        return Control(self.ledger, self.store, self.queue, self.clock, self.settings)

    @property
    def batch(self) -> Batch:
        return read_batch(self.control, TENANT, self.batch_id)

    def create(self, *, expires_at: int | None = None) -> Batch:
        return ingest.create_batch(
            self.control,
            TENANT,
            self.batch_id,
            model=PIN,
            seed="seed",
            input_fingerprint="sha",
            options={},
            expires_at=expires_at,
        )

    def ingest(
        self,
        windows: Iterable[Window],
        *,
        should_pause: Callable[[], bool] = lambda: False,
        error: Exception | None = None,
    ) -> bool:
        """Ingest `windows` instead of a file, then raise `error` if there is one."""
        batch = self.batch

        def read() -> Iterator[Window]:
            yield from (w for w in windows if w.cursor.row_idx > batch.ingest_row_idx)
            if error is not None:
                raise error

        return ingest.ingest_windows(self.control, batch, read(), should_pause=should_pause)

    def lines(self, which: str) -> list[dict[str, Any]] | None:
        """The lines of the output or error file of the batch; None without such a file."""
        file_id = getattr(self.batch, f"{which}_file_id")
        if file_id is None:
            return None
        return read_lines(self.store.get(file_key(TENANT, file_id)))


def read_lines(body: bytes) -> list[dict[str, Any]]:
    """Strict: UTF-8, one JSON object a line, no NaN, a newline at the end of each."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    if not body:
        return []
    *lines, last = body.decode().split("\n")
    assert last == ""
    return [json.loads(line, parse_constant=refuse) for line in lines]


def make_result(job: Job, job_idx: int, *, error: RowError | None = None) -> RowResult:
    if error is not None:
        return RowResult(job_idx, job.rows, error=error, finished_at=5)
    ids = fake_tokens(job)
    return RowResult(
        job_idx,
        job.rows,
        Usage(len(job.prompt_ids), len(ids)),
        (Choice(ids, fake_text(ids), FinishReason.STOP),),
        finished_at=5,
        ttft_s=0.5,
        itl_s=0.02,
    )


def make_segment(
    batch: Batch,
    shard_n: int,
    results: Iterable[RowResult] = (),
    *,
    attempt: str = "att-a",
    seq: int = 0,
    checkpoints: Any = (),
) -> Segment:
    return Segment(
        TENANT,
        batch.id,
        batch.run_id,
        shard_n,
        attempt,
        seq,
        tuple(results),
        tuple(checkpoints),
    )


def worker_config(**changes: Any) -> WorkerConfig:
    return WorkerConfig(
        Path("/nowhere"), PIN, Path("/nowhere"), 512, **{"idle_wait_s": 0.0, **changes}
    )


def make_pointer(batch: Batch, n: int, num_jobs: int) -> ShardPointer:
    return ShardPointer(TENANT, batch.id, batch.run_id, n, num_jobs, 0)
