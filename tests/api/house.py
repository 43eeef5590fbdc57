"""The whole service in this process, with a FakeEngine whose pace tests choose, and a clock."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
from fake_engine import FakeEngine
from local_run import make_line, make_model_folder
from openai import OpenAI
from openai.types import Batch, FileObject
from pipeline import fast_folder, read_lines

from gristmill.api.access import Scope
from gristmill.compute import WorkerConfig
from gristmill.local.data_folder import DataFolder
from gristmill.local.service import Service
from gristmill.local_model import Catalogue
from gristmill.models import Model, find_model
from gristmill.queues.base import BULK_LANE, Queue
from gristmill.settings import Settings
from gristmill.stores.base import Store
from gristmill_worker.worker import Worker

ENDED = {"completed", "failed", "expired", "cancelled"}
_CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
ALL = tuple(scope for scope in Scope if scope is not Scope.OPERATOR)


class SteppedClock:
    """The machine's clock, plus what a test has put it forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class PacedClock:
    """For the Engine: its steps take a moment, so that a paused one leaves the CPU to others."""

    def __call__(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class House:
    """`engine.paused` holds up all decoding; `clock.ahead_s` is how far time was put forward."""

    service: Service
    folder: Path
    clock: SteppedClock
    settings: Settings
    engine: FakeEngine
    data: DataFolder
    model: Model
    _keys: dict[str, str] = field(default_factory=dict)
    _uploads: Any = None

    @classmethod
    @contextmanager
    def opened(
        cls, folder: Path | None = None, *, with_chat: bool = False, **settings: Any
    ) -> Iterator[House]:
        if folder is None:
            with (
                fast_folder() as folder,
                cls.opened(folder, with_chat=with_chat, **settings) as house,
            ):
                yield house
            return
        values = {
            "shard_max_jobs": 4,
            "flush_interval_s": 0.05,
            "quiet_flush_interval_s": 0.05,
            "max_file_bytes": 200_000,
            "failed_logins_per_min": 100_000,
            "cache_dir": folder / "cache",
            **settings,
        }
        made = Settings(**values)
        clock = SteppedClock()
        engine = FakeEngine(clock=PacedClock(), step_s=0.002)  # type: ignore[arg-type]
        model_folder = make_model_folder(folder / "M")
        if with_chat:
            (model_folder / "chat_template.jinja").write_text(_CHAT)
        model = find_model(str(model_folder), settings=made)

        def build(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
            return Worker(engine, queue, store, config)

        stop, ready = threading.Event(), threading.Event()
        with (
            patch("gristmill.control.loop._SWEEP_INTERVAL_S", 0.1),
            DataFolder(folder / "data") as data,
        ):
            catalogue = Catalogue((model,), adapters=(), device="cpu")
            service = Service(data, made, catalogue, host="127.0.0.1", port=0, clock=clock)
            failures: list[BaseException] = []

            def serve() -> None:
                try:
                    service.serve(stop, build, on_ready=lambda _: ready.set())
                except BaseException as error:
                    failures.append(error)
                    ready.set()

            thread = threading.Thread(target=serve)
            thread.start()
            assert ready.wait(60)
            try:
                yield cls(service, folder, clock, made, engine, data, model)
            finally:
                engine.resume()
                stop.set()
                thread.join(60)
        assert not failures, failures

    def wait_for(self, is_so: Callable[[], Any]) -> None:
        """Until a thread of the service has made it so."""
        give_up_at = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < give_up_at
            self.wait_a_turn()

    def wait_a_turn(self) -> None:
        """Leave the threads of the service a moment."""
        time.sleep(0.02)

    def pause_ingest(self) -> None:
        """No uploaded file is read until `resume_ingest`."""
        self._uploads = patch("gristmill.control.read_uploads.ingest_slice")
        self._uploads.start()

    def resume_ingest(self) -> None:
        self._uploads.stop()

    def pause_midway(self, num_rows: int = 4) -> None:
        """From now on so many rows are answered, or a few more; then all decoding is held up."""
        # What is left of a batch that was cancelled is not what is counted.
        self.wait_for(lambda: not self.engine.num_live and not self._num_sent())
        self.engine.pauses_after = num_rows

    def _num_sent(self) -> int:
        stats = self.service.control.queue.stats(BULK_LANE)
        return stats.visible + stats.leased

    @contextmanager
    def slow(self) -> Iterator[None]:
        """While entered, a row takes about half a second."""
        self.engine.step_s, before = 0.04, self.engine.step_s
        yield
        self.engine.step_s = before

    def key(self, tenant_id: str = "acme", scopes: Iterable[Scope] = ALL) -> str:
        """A key of a tenant; the same one each time."""
        name = f"{tenant_id} {sorted(scopes)}"
        if name not in self._keys:
            text, _ = self.service.access.make_key(tenant_id, name=name, scopes=tuple(scopes))
            self._keys[name] = str(text)
        return self._keys[name]

    def client(self, tenant_id: str = "acme", **options: Any) -> OpenAI:
        options.setdefault("api_key", self.key(tenant_id))
        options.setdefault("max_retries", 0)
        return OpenAI(base_url=f"{self.service.url}/v1", **options)

    def http(self, tenant_id: str = "acme", **options: Any) -> httpx2.Client:
        """A client that says exactly what it is told to."""
        options.setdefault("headers", {"authorization": f"Bearer {self.key(tenant_id)}"})
        return httpx2.Client(base_url=self.service.url, timeout=30, **options)

    def upload(
        self, lines: Iterable[str] | bytes, *, tenant_id: str = "acme", **options: Any
    ) -> FileObject:
        body = lines if isinstance(lines, bytes) else as_file(lines)
        file = ("in.jsonl", io.BytesIO(body))
        return self.client(tenant_id).files.create(file=file, purpose="batch", **options)

    def create(
        self, lines: Iterable[str] | bytes, *, tenant_id: str = "acme", **options: Any
    ) -> Batch:
        options = {"endpoint": "/v1/completions", "completion_window": "24h", **options}
        file = self.upload(lines, tenant_id=tenant_id)
        return self.client(tenant_id).batches.create(input_file_id=file.id, **options)

    def wait(
        self,
        batch: Batch,
        until: Callable[[Batch], Any] = lambda batch: batch.status in ENDED,
        *,
        tenant_id: str = "acme",
    ) -> Batch:
        """The batch as soon as it is so."""
        client = self.client(tenant_id)
        give_up_at = time.monotonic() + 60
        while not until(batch):
            assert time.monotonic() < give_up_at, batch
            time.sleep(0.02)
            batch = client.batches.retrieve(batch.id)
        return batch

    def lines(self, file_id: str | None, *, tenant_id: str = "acme") -> list[dict[str, Any]]:
        """The lines of a result file; none where there is no file."""
        if file_id is None:
            return []
        return read_lines(self.client(tenant_id).files.content(file_id).content)


def as_file(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def make_lines(count: int, **body: Any) -> list[str]:
    return [make_line(f"row-{i}", **body) for i in range(count)]


def custom_ids(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in lines]


def document(response: httpx2.Response) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(response.content)
    return found
