"""A batch, a queue, a store, and processes that come, are hurt and go; what they leave behind."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_run import make_model_folder
from nursery import Nursery
from traces import Evidence, read_history

from gristmill.cli.failures import ExitCode
from gristmill.crash_points import CRASH_POINT, HISTORY

CHILD = Path(__file__).with_name("nursery_process.py")
PATIENCE_S = 120.0
#: What `gristmill run` ends with when the batch has.
ENDED = (ExitCode.OK, ExitCode.ROWS_FAILED)


@functools.cache
def shared_nursery() -> Nursery:
    """One for all tests of this process."""
    nursery = Nursery(CHILD)
    atexit.register(nursery.close)
    return nursery


@dataclass
class Life:
    """One process of the arena."""

    side: str
    pid: int
    history: Path
    log_path: Path
    nursery: Nursery
    is_frozen: bool = False

    @property
    def exit_code(self) -> int | None:
        return self.nursery.exit_code(self.pid)

    @property
    def is_alive(self) -> bool:
        return self.exit_code is None

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def events(self) -> list[dict[str, Any]]:
        return read_history(self.history)

    def has_passed(self, point: str) -> bool:
        return self.history.exists() and f'{{"e":"{point}"' in self.history.read_text()

    def kill(self, number: signal.Signals) -> None:
        """Send a signal; no error when it has just come to its end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, *, patience_s: float = PATIENCE_S) -> int:
        """Wait for the end it comes to by itself."""
        what = f"the end of {self.history.stem}"
        return wait_for(what, lambda: _some(self.exit_code), patience_s=patience_s)[0]


@dataclass
class Arena:
    folder: Path
    nursery: Nursery
    queue_url: str
    store_url: str = ""
    lease_s: float = 1.0
    flush_s: float = 0.2
    step_s: float = 0.0
    max_num_seqs: int = 16
    shard_max_jobs: int = 8
    model: str = ""
    real_model: bool = False
    keeps_history: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "history").mkdir(exist_ok=True)
        self.store_url = self.store_url or str(self.folder / "store")
        self.model = self.model or str(make_model_folder(self.folder / "model"))
        self.input = self.folder / "in.jsonl"
        self.disk_full_flag = self.folder / "disk-full"

    def write(self, lines: Iterable[str]) -> None:
        with self.input.open("w") as file:
            file.writelines(f"{line}\n" for line in lines)

    def start_control(self, **order: Any) -> Life:
        """The control side of the batch: reads, dispatches, accepts, ends, writes the files."""
        return self._start("control", [*self._run_argv("out"), *self._links()], order)

    def run_undisturbed(self) -> Path:
        """The output of the same batch in one process, without queue, faults or workers."""
        life = self._start("undisturbed", self._run_argv("undisturbed"), {})
        assert life.end() in ENDED, life.log
        self.lives.remove(life)
        return self.folder / "undisturbed.jsonl"

    def start_worker(self, **order: Any) -> Life:
        argv = ["worker", *self._links(), "--model", self.model, "--health", "off"]
        return self._start("worker", argv, order)

    def hurt(self, life: Life, number: signal.Signals) -> None:
        """Send a signal, and write down when."""
        self.note(number.name, pid=life.pid)
        life.kill(number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            life.is_frozen = number is signal.SIGSTOP

    def note(self, fault: str, **facts: Any) -> None:
        line = {"e": "fault", "t": time.monotonic(), "kind": fault, **facts}
        with (self.folder / "history" / "faults.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def workers(self) -> list[Life]:
        return [life for life in self.lives if life.side == "worker" and life.is_alive]

    def evidence(self, undisturbed: Path | None = None) -> Evidence:
        return Evidence(
            input=self.input,
            output=self.folder / "out.jsonl",
            errors=self.folder / "out.errors.jsonl",
            histories=sorted((self.folder / "history").glob("*.jsonl")),
            lease_s=self.lease_s,
            undisturbed=undisturbed,
        )

    def close(self) -> None:
        for life in self.lives:
            if life.is_alive:
                life.kill(signal.SIGKILL)
        wait_for("all to end", lambda: not any(life.is_alive for life in self.lives))

    def said(self) -> str:
        """The logs of all, for a test that fails."""
        return "\n".join(f"== {life.history.stem}\n{life.log[-3000:]}" for life in self.lives)

    def _run_argv(self, name: str) -> list[str]:
        output = str(self.folder / f"{name}.jsonl")
        served = ["--served-model-name", "M", "--no-progress", "-q"]
        return ["run", str(self.input), "-o", output, "--model", self.model, *served]

    def _links(self) -> list[str]:
        return ["--queue", self.queue_url, "--store", self.store_url]

    def _start(self, side: str, argv: list[str], order: dict[str, Any]) -> Life:
        name = f"{side}-{len(self.lives)}"
        history = self.folder / "history" / f"{name}.jsonl"
        log = self.folder / f"{name}.log"
        plan = order.pop("plan", "")
        settings = {
            "lease_s": self.lease_s,
            "flush_interval_s": self.flush_s,
            "quiet_flush_interval_s": self.flush_s,
            "resend_after_s": 2 * self.lease_s,
            "shard_max_jobs": self.shard_max_jobs,
            "dispatch_window_shards": 16,
            "max_num_seqs": self.max_num_seqs,
            "outage_patience_s": 60.0,
            "device": "cpu",
            **self.settings,
        }
        environment = {f"GRISTMILL_{k.upper()}": str(v) for k, v in settings.items()}
        credentials = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
        full_order = {
            "argv": argv,
            "out": str(log),
            "err": str(log),
            "env": {**credentials, **environment, HISTORY: str(history), CRASH_POINT: plan},
            "real_model": self.real_model,
            "planted": "",
            "step_s": self.step_s if side == "worker" else 0.0,
            "clock_jump_s": 0.0,
            "disk_full_flag": str(self.disk_full_flag),
            **order,
        }
        if side == "undisturbed" or not self.keeps_history:
            full_order["env"][HISTORY] = ""
        pid = self.nursery.bear(full_order)
        life = Life(side, pid, history, log, self.nursery)
        self.lives.append(life)
        return life


def wait_for(what: str, is_so: Callable[[], Any], *, patience_s: float = PATIENCE_S) -> Any:
    """What `is_so` returns, as soon as it is true."""
    give_up_at = time.monotonic() + patience_s
    while not (found := is_so()):
        assert time.monotonic() < give_up_at, f"in vain: {what}"
        time.sleep(0.02)
    return found


def _some(value: int | None) -> tuple[int] | None:
    return None if value is None else (value,)
