"""A worker process that measures itself: wall time, CPU time, time inside Engine.step."""

from __future__ import annotations

import cProfile
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS / "integration"))

from pipeline import PIN  # noqa: E402

from gristmill.compute import WorkerConfig, worker_config  # noqa: E402
from gristmill.local_model import find_local_model  # noqa: E402
from gristmill.process.connect import connect  # noqa: E402
from gristmill.settings import Settings  # noqa: E402
from gristmill.types import FinishReason, Job, Usage  # noqa: E402
from gristmill_worker.engine.base import NOTHING, Finished, Generated, StepOutput  # noqa: E402
from gristmill_worker.worker import Worker  # noqa: E402

_IDLE_EXIT_S = 10.0


class ScriptedEngine:
    """One token a step for each of 256 rows, at next to no cost."""

    max_num_seqs = 256

    def __init__(self) -> None:
        self._live: dict[str, tuple[Job, list[int]]] = {}

    @property
    def num_live(self) -> int:
        return len(self._live)

    def add(self, seq_id: str, job: Job, resume: Generated = NOTHING) -> None:
        self._live[seq_id] = job, list(resume.token_ids)

    def cancel(self, seq_id: str) -> None:
        self._live.pop(seq_id, None)

    def generated(self, seq_id: str) -> Generated:
        ids = self._live[seq_id][1]
        return Generated(tuple(ids), (0,) * len(ids))

    def step(self) -> StepOutput:
        finished, advanced = [], list(self._live)[: self.max_num_seqs]
        for seq_id in advanced:
            job, ids = self._live[seq_id]
            ids.append(1000 + len(ids))
            if len(ids) >= job.params.max_tokens:
                del self._live[seq_id]
                generated = Generated(tuple(ids), (0,) * len(ids))
                finished.append(
                    Finished(seq_id, Usage(16, len(ids)), generated, "x" * 40, FinishReason.LENGTH)
                )
        return StepOutput(finished, num_decode_tokens=len(advanced), advanced=advanced)


class Timed:
    """An Engine whose steps are timed."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.began = self.ended = 0.0
        self.step_s = 0.0
        self.step = self._step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _step(self) -> StepOutput:
        began = time.monotonic()
        self.began = self.began or began
        output: StepOutput = self._engine.step()
        self.ended = time.monotonic()
        self.step_s += self.ended - began
        return output


@contextmanager
def profiled(path: str | None) -> Iterator[None]:
    """CPU time of this thread into the file `path`, of each that it starts into `path`.NAME."""
    if path is None:
        yield
        return
    run = threading.Thread.run

    def run_profiled(thread: threading.Thread) -> None:
        with cProfile.Profile(time.thread_time) as profile:
            run(thread)
        profile.dump_stats(f"{path}.{thread.name}")

    with patch.object(threading.Thread, "run", run_profiled):
        with cProfile.Profile(time.thread_time) as profile:
            yield
        profile.dump_stats(path)


def main(options: dict[str, Any]) -> None:
    settings = Settings()
    config = WorkerConfig(Path("none"), PIN, Path("none"), 512, exit_when_idle_s=_IDLE_EXIT_S)
    if options["real"]:
        model, device = find_local_model("smollm2-135m", settings=settings, revision=None)
        config = worker_config(
            settings,
            model_path=model.path,
            pin=model.pin,
            max_model_len=model.max_model_len,
            device=device,
            exit_when_idle_s=_IDLE_EXIT_S,
        )
    if options.get("pin_only"):
        print(json.dumps(asdict(config.pin)))
        return
    queue, store = connect(options["queue"], options["store"], settings)
    engine: Any = ScriptedEngine()
    kv_tokens = None
    if options["real"]:
        from gristmill_worker.equip import load_engine

        loaded = load_engine(config)
        engine, kv_tokens = loaded.engine, loaded.kv_tokens
    timed: Any = Timed(engine)
    worker = Worker(timed, queue, store, config, kv_tokens=kv_tokens)
    cpu_began = time.process_time()
    with profiled(options.get("profile")):
        worker.run(threading.Event())
    report = {
        "wall_s": timed.ended - timed.began,
        "step_s": timed.step_s,
        "cpu_s": time.process_time() - cpu_began,
    }
    print(json.dumps(report))


main(json.loads(sys.argv[1]))
