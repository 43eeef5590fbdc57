"""What metrics and traces cost the engine's thread, in shares of the time of its steps.

Usage: metrics_cost.py [--rows 64] [--tokens 32] [--jobs 256] [--shards 2] [--rounds 5]
                       [--models tiny smollm2]

A Worker answers Shards of as many Jobs as ingest puts into one, 64 rows at once and 32 tokens each,
with all metrics recorded and every Shard traced to a collector (a server in a process of its own):
a Llama of two layers with random weights, whose steps are as short as steps get, and SmolLM2-135M.
Told are the mean step, what recording took for each step (all of it, rows' ends and Attempts' spans
too, measured call by call, less what the clock takes), and their ratio, in CPU time of the engine's
thread, so that what else runs on the machine does not count; torch gets one thread. And the ratio
of the Worker's whole time with and without, round by round in turns, which shows what the threads
beside it take, on a machine that is quiet.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "integration"), str(TESTS / "models")]

import tiny  # noqa: E402
import torch  # noqa: E402
from pipeline import PIN, TENANT, worker_config  # noqa: E402

from gristmill.metrics import Process  # noqa: E402
from gristmill.models import find_model  # noqa: E402
from gristmill.process.otel import OtelTracer  # noqa: E402
from gristmill.queues.base import BULK_LANE  # noqa: E402
from gristmill.queues.memory import MemoryQueue  # noqa: E402
from gristmill.settings import Settings  # noqa: E402
from gristmill.stores.keys import shard_key  # noqa: E402
from gristmill.stores.local import LocalStore  # noqa: E402
from gristmill.telemetry import NO_TELEMETRY, Tally, Telemetry  # noqa: E402
from gristmill.types import (  # noqa: E402
    Endpoint,
    Job,
    Prompt,
    Row,
    SamplingParams,
    Shard,
    ShardPointer,
)
from gristmill.wire import encode_pointer, encode_shard  # noqa: E402
from gristmill_worker.build import build_engine  # noqa: E402
from gristmill_worker.models.gguf import convert  # noqa: E402
from gristmill_worker.models.loader import LoadedModel, load_model  # noqa: E402
from gristmill_worker.record import Record  # noqa: E402
from gristmill_worker.worker import Worker  # noqa: E402

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
_RECORDING = ("step", "answered", "_ended", "resumed", "load", "opened", "closed")


@dataclass
class Spent:
    steps_s: list[float] = field(default_factory=list)
    recording_s: float = 0.0
    whole_s: float = 0.0


@contextmanager
def collector() -> Iterator[str]:
    command = [sys.executable, "-c", _COLLECTOR]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


def loaded_model(name: str) -> LoadedModel:
    if name == "tiny":
        return tiny.as_loaded(tiny.make_model("llama"), packed=True)
    settings = Settings()
    folder = find_model("smollm2-135m", settings=settings, convert_gguf=convert).path
    return load_model(Path(folder), cache_dir=settings.cache_dir)


def timed_calls(spent: Spent) -> Callable[[], None]:
    """All recording of a Worker is timed from now on; called, that is over."""
    before = {name: getattr(Record, name) for name in _RECORDING}

    def timing(function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                ended = time.thread_time()
                of_the_clock_s = time.thread_time() - ended
                spent.recording_s += ended - began - of_the_clock_s

        return timed

    for name, function in before.items():
        setattr(Record, name, timing(function))

    def restore() -> None:
        for name, function in before.items():
            setattr(Record, name, function)

    return restore


def run_once(
    loaded: LoadedModel,
    telemetry: Telemetry,
    arguments: argparse.Namespace,
    *,
    times_calls: bool = False,
) -> Spent:
    """Answer all Shards once, on a fresh queue, store and Engine."""
    spent = Spent()
    with tempfile.TemporaryDirectory() as folder:
        queue, store = MemoryQueue(60.0), LocalStore(Path(folder) / "store")
        for n in range(arguments.shards):
            shard = make_shard(n, arguments, loaded.vocab_size)
            key = shard_key(TENANT, "batch_1", "run", n)
            store.put(key, encode_shard(shard))
            pointer = ShardPointer(
                *(TENANT, "batch_1", "run", n, arguments.jobs, 0), traceparent=TRACEPARENT
            )
            queue.send(BULK_LANE, encode_pointer(pointer))
        engine = build_engine(
            loaded,
            cache_dir=Settings().cache_dir,
            max_num_seqs=arguments.rows,
            kv_memory_fraction=0.1,
            drafts=False,
        )
        step = engine.step

        def timed_step() -> Any:
            began = time.thread_time()
            output = step()
            spent.steps_s.append(time.thread_time() - began)
            return output

        engine.step = timed_step  # type: ignore[method-assign]
        worker = Worker(engine, queue, store, worker_config(exit_when_idle_s=0.3))
        worker.watch(telemetry)
        restore = timed_calls(spent) if times_calls else lambda: None
        began = time.perf_counter()
        worker.run(threading.Event())
        spent.whole_s = time.perf_counter() - began
        restore()
    return spent


def make_shard(n: int, arguments: argparse.Namespace, vocab_size: int) -> Shard:
    jobs = tuple(
        Job(
            (Row(idx, f"row-{idx}"),),
            (Prompt(tuple(3 + (n * 7919 + idx * 31 + i) % (vocab_size - 3) for i in range(16))),),
            SamplingParams(arguments.tokens, temperature=0.0, ignore_eos=True),
        )
        for idx in range(arguments.jobs)
    )
    return Shard(TENANT, "batch_1", "run", n, Endpoint.COMPLETIONS, PIN, jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=256)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | steps | step ms | recording, us a step | share | whole, with / without |")
    print("|---|---|---|---|---|---|")
    with collector() as url:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
        tracer = OtelTracer("bench")
        telemetry = Telemetry(Tally(Process.WORKER), tracer)
        for name in arguments.models:
            loaded = loaded_model(name)
            run_once(loaded, NO_TELEMETRY, arguments)  # what is made once is made now
            counted = run_once(loaded, telemetry, arguments, times_calls=True)
            ratios: list[float] = []
            for _ in range(arguments.rounds):
                with_s = run_once(loaded, telemetry, arguments).whole_s
                ratios.append(with_s / run_once(loaded, NO_TELEMETRY, arguments).whole_s)
            num_steps = len(counted.steps_s)
            share = counted.recording_s / sum(counted.steps_s)
            whole = (
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
                if ratios
                else "-"
            )
            print(
                f"| {name} | {num_steps} | {statistics.mean(counted.steps_s) * 1000:.2f} "
                f"| {counted.recording_s / num_steps * 1e6:.1f} | {share:.2%} "
                f"| {whole} |",
                flush=True,
            )
        tracer.close()


if __name__ == "__main__":
    main()
