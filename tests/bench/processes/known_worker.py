"""The nursery of _real_fleet.py: `gristmill control`, and `gristmill worker` on a known machine.

Behind a worker is the real Scheduler, and steps that take exactly as long as the simulator says.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import msgspec

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / name) for name in ("integration", "services")]

from local_run import Desk, make_line  # noqa: E402
from nursery import serve  # noqa: E402
from pipeline import fast_folder  # noqa: E402

from gristmill.cli import app  # noqa: E402
from gristmill.compute import WorkerConfig  # noqa: E402
from gristmill.queues.base import Queue  # noqa: E402
from gristmill.simulator.engine import FIRST_EXPECTED_OUTPUT  # noqa: E402
from gristmill.simulator.machine import Machine  # noqa: E402
from gristmill.stores.base import Store  # noqa: E402
from gristmill.types import FinishReason, Job, Usage  # noqa: E402
from gristmill_worker.engine.base import NOTHING, Finished, Generated, StepOutput  # noqa: E402
from gristmill_worker.engine.block_manager import BlockManager  # noqa: E402
from gristmill_worker.engine.scheduler import Scheduler  # noqa: E402
from gristmill_worker.engine.sequence import Sequence  # noqa: E402
from gristmill_worker.worker import Worker  # noqa: E402

_BLOCK = 16
_CATCH_UP_S = 0.1


def answer_length(prompt: bytes, max_tokens: int) -> int:
    """How long the answer to a prompt is: from 1 to max_tokens, the same everywhere."""
    return 1 + crc32(prompt) % max_tokens


class KnownEngine:
    """Each step lasts what the machine's arithmetic says; it sleeps until then."""

    def __init__(self, machine: Machine, rows_path: Path) -> None:
        """Into the file goes a line for each row that has finished: its custom_id, when it began
        in a step, and now (CLOCK_MONOTONIC, which all processes of a machine share)."""
        self._machine = machine
        self._rows = os.open(rows_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.scheduler = Scheduler(
            BlockManager(machine.kv_tokens // _BLOCK, _BLOCK),
            max_num_seqs=machine.max_num_seqs,
            max_num_batched_tokens=machine.max_num_batched_tokens,
            expected_output_tokens=FIRST_EXPECTED_OUTPUT,
        )
        self._live: dict[str, Sequence] = {}
        self._lengths: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._custom_ids: dict[str, str] = {}
        self._num_arrivals = 0
        #: When the last step should have ended.
        self._due_at = 0.0

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def max_num_seqs(self) -> int:
        return self._machine.max_num_seqs

    def add(self, seq_id: str, job: Job, resume: Generated = NOTHING) -> None:
        self._num_arrivals += 1
        seq = Sequence(seq_id, job, self._num_arrivals, resume)
        self._live[seq_id] = seq
        self._custom_ids[seq_id] = job.rows[0].custom_id
        self._lengths[seq_id] = answer_length(bytes(job.prompt_ids), job.params.max_tokens)
        past_s = resume.times_ms[-1] / 1000 if resume.times_ms else 0.0
        self._started[seq_id] = time.monotonic() - past_s
        self.scheduler.add(seq)

    def cancel(self, seq_id: str) -> None:
        if seq_id in self._live:
            self.scheduler.finish([self._live[seq_id]])
            self._forget(seq_id)

    def generated(self, seq_id: str) -> Generated:
        seq = self._live[seq_id]
        return Generated(tuple(seq.generated_ids), tuple(seq.times_ms))

    def step(self) -> StepOutput:
        plan = self.scheduler.schedule()
        for item in plan.scheduled:
            self._begun.setdefault(item.seq.seq_id, time.monotonic())
        decoding = [item for item in plan.scheduled if item.seq.num_uncomputed_tokens == 1]
        prefilling = [item for item in plan.scheduled if item.seq.num_uncomputed_tokens > 1]
        context = sum(item.seq.num_tokens for item in decoding)
        prefill_s = sum(
            item.num_tokens * self._machine.prefill_s_per_token(item.seq.num_prompt_tokens)
            for item in prefilling
        )
        self._last(self._machine.step_s(len(decoding), context, prefill_s))
        ending = [item.seq for item in plan.scheduled if item.reaches_end]
        self.scheduler.advance(plan)
        for seq in ending:
            seq.token_ids.append(1 + seq.num_generated_tokens % 200)
            seq.times_ms.append(int((time.monotonic() - self._started[seq.seq_id]) * 1000))
            if seq.num_generated_tokens >= self._lengths[seq.seq_id]:
                seq.finish_reason = FinishReason.STOP
        ended = [seq for seq in ending if seq.has_ended]
        self.scheduler.finish(ended)
        return StepOutput(
            finished=[self._finished(seq) for seq in ended],
            num_prefill_tokens=sum(item.num_tokens for item in prefilling),
            num_decode_tokens=len(decoding),
            advanced=[seq.seq_id for seq in ending],
        )

    def _last(self, seconds: float) -> None:
        """The step lasts so long since the last one should have ended: a machine of its own would
        not be slower because others use this one. What is much too late is not caught up with."""
        self._due_at = max(self._due_at, time.monotonic() - _CATCH_UP_S) + seconds
        time.sleep(max(self._due_at - time.monotonic(), 0.0))

    def _finished(self, seq: Sequence) -> Finished:
        generated = self.generated(seq.seq_id)
        told = self._custom_ids[seq.seq_id], self._begun[seq.seq_id], time.monotonic()
        os.write(self._rows, json.dumps(told).encode() + b"\n")
        self._forget(seq.seq_id)
        usage = Usage(seq.num_prompt_tokens, len(generated.token_ids))
        return Finished(seq.seq_id, usage, generated, "x", seq.finish_reason)

    def _forget(self, seq_id: str) -> None:
        for of_row in (self._live, self._lengths, self._started, self._custom_ids):
            del of_row[seq_id]
        self._begun.pop(seq_id, None)


def live(order: dict[str, Any]) -> int:
    """One process, as it is ordered; the exit code."""
    os.environ.update(order["env"])

    def build(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
        machine = msgspec.convert(order["machine"], Machine)
        engine: Any = KnownEngine(machine, Path(order["rows"]))
        return Worker(engine, queue, store, config, kv_tokens=machine.kv_tokens)

    with patch("gristmill.compute.find_worker", lambda: build):
        app(order["argv"])
    return 0


def rehearse() -> None:
    """One small run, after which everything is imported."""
    for name in (
        *("gristmill.cli.control", "gristmill.cli.worker", "gristmill.control.gauges"),
        *("gristmill.process.control", "gristmill.process.worker", "gristmill.queues.redis"),
    ):
        importlib.import_module(name)
    with fast_folder() as folder:
        desk = Desk(folder)
        desk.write([make_line("a")])
        desk.run()


if __name__ == "__main__":
    rehearse()
    serve(live)
