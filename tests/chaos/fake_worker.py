"""A worker process as `gristmill worker` makes one, but with a FakeEngine.

Arguments: a JSON object (see `FakeWorkers.start` in workers.py). What it does to tokens goes to a
log at once, one line each, so that a kill loses none of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from fake_engine import FakeEngine
from local_run import BYTES, RealClock

from gristmill.cli.failures import ExitCode, failures_reported
from gristmill.compute import ComputeWorker, worker_config
from gristmill.local_model import find_local_model
from gristmill.process.connect import connect
from gristmill.process.health import health_served
from gristmill.process.logs import log_to_stderr
from gristmill.process.signals import StopSignals
from gristmill.process.spot_notice import spot_watched
from gristmill.process.worker import WorkerProcess
from gristmill.settings import Settings
from gristmill_worker.worker import Worker


class DeadlyEngine(FakeEngine):
    """A prompt that holds `!kill` ends the process, one that holds `!hang` its steps."""

    def step(self) -> Any:
        for live in list(self.live.values())[: self.max_num_seqs]:
            prompt = "".join(BYTES[token_id] for token_id in live.job.prompt_ids)
            if "!kill" in prompt:
                os.kill(os.getpid(), signal.SIGKILL)
            if "!hang" in prompt:
                time.sleep(3600)
        return super().step()


def main(options: dict[str, Any]) -> int:
    settings = Settings(**options["settings"])
    log = os.open(options["decoded_log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_decode(prompt: tuple[int, ...], position: int) -> None:
        os.write(log, f"{bytes(prompt).hex()} {position}\n".encode())

    def build() -> ComputeWorker:
        queue, store = connect(options["queue"], options["store"], settings)
        model, device = find_local_model(options["model"], settings=settings, revision=None)
        config = worker_config(
            settings,
            model_path=model.path,
            pin=model.pin,
            max_model_len=model.max_model_len,
            device=device,
            patience_s=settings.outage_patience_s,
            exit_when_idle_s=options["idle_exit_s"],
            idle_wait_s=0.1,
        )
        clock: Any = RealClock()
        engine = DeadlyEngine(
            max_num_seqs=8, clock=clock, step_s=options["step_s"], on_decode=on_decode
        )
        return Worker(engine, queue, store, config)

    log_to_stderr(debug=False)
    signals = StopSignals(grace_s=settings.drain_grace_s, at_once_code=ExitCode.UNSAVED)
    process = WorkerProcess(signals)
    with (
        failures_reported(debug=False),
        signals,
        spot_watched(settings, signals),
        health_served("127.0.0.1:0", process.health),
    ):
        return process.serve(build)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
