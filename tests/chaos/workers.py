"""Worker processes with a FakeEngine, on a real queue and a store that they share."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_run import Desk

from gristmill import local

CHILD = Path(__file__).with_name("fake_worker.py")
_PATIENCE_S = 60.0


def wait_for(what: str, is_so: Callable[[], Any], *, patience_s: float = _PATIENCE_S) -> Any:
    """What `is_so` returns, as soon as it is true."""
    give_up_at = time.monotonic() + patience_s
    while not (found := is_so()):
        assert time.monotonic() < give_up_at, f"in vain: {what}"
        time.sleep(0.02)
    return found


@dataclass
class FakeWorker:
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def has_said(self, text: str) -> bool:
        return text in self.log

    def shards_begun(self) -> set[str]:
        return set(re.findall(r"attempt began .* shard=(\d+)", self.log))

    def shards_ended(self) -> set[str]:
        return set(re.findall(r"attempt over .* shard=(\d+)", self.log))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self, *, within_s: float = _PATIENCE_S) -> int:
        """Negative: the signal that killed it."""
        return self.process.wait(within_s)

    def health(self, path: str) -> tuple[int, dict[str, Any]]:
        url = re.search(r"url=(http://[0-9.:]+)", self.log)
        assert url
        try:
            with urllib.request.urlopen(url[1] + path, timeout=10) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@dataclass
class Fleet:
    """A batch in one folder, a queue, and workers that come and go."""

    desk: Desk
    queue_url: str
    settings: dict[str, Any]
    step_s: float = 0.03
    #: None: a folder beside the batch.
    store_url: str | None = None
    #: How the batch has ended.
    summary: local.Summary | None = None
    workers: list[FakeWorker] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.desk.folder / "shared"

    @property
    def decoded_log(self) -> Path:
        return self.desk.folder / "decoded.log"

    def start(self, *, idle_exit_s: float | None = None, **settings: Any) -> FakeWorker:
        log_path = self.desk.folder / f"worker-{len(self.workers)}.log"
        options = {
            "queue": self.queue_url,
            "store": self.store_url or str(self.store),
            "model": str(self.desk.model),
            "settings": {**self.settings, **settings},
            "decoded_log": str(self.decoded_log),
            "step_s": self.step_s,
            "idle_exit_s": idle_exit_s,
        }
        process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(options)], stderr=log_path.open("wb")
        )
        worker = FakeWorker(process, log_path)
        self.workers.append(worker)
        return worker

    def take_store_away(self) -> None:
        """From now on every use of it fails, as on a network disk that is gone for a while."""
        self.store.rename(self.store.with_name("away"))
        self.store.symlink_to(self.store)  # leads nowhere: ELOOP

    def give_store_back(self) -> None:
        self.store.unlink()
        self.store.with_name("away").rename(self.store)

    def num_decoded(self) -> int:
        return len(self.decoded_log.read_bytes().splitlines()) if self.decoded_log.exists() else 0

    def num_decoded_twice(self) -> int:
        counts = Counter(self.decoded_log.read_bytes().splitlines())
        return sum(counts.values()) - len(counts)

    @contextmanager
    def running(self) -> Iterator[threading.Thread]:
        """The control side, in a thread, until the batch has ended."""
        desk = self.desk
        desk.fleet = local.Fleet(self.queue_url, self.store_url or str(self.store))
        thread = threading.Thread(
            target=lambda: setattr(self, "summary", desk.run()), name="run", daemon=True
        )
        thread.start()
        yield thread
        thread.join(_PATIENCE_S)
        logs = "\n".join(worker.log for worker in self.workers)
        assert not thread.is_alive(), f"the batch does not end\n{logs}"
        assert self.summary and self.summary.status == "completed"

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
