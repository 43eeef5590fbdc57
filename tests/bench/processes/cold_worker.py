"""`gristmill worker` as it is installed, until its first token: tells how long each step took.

Arguments are those of `gristmill`. Time counts from the start of the process, and CPU time with it;
the last line of stdout is JSON, pairs of a step and [wall seconds, CPU seconds].
"""

from __future__ import annotations

import os
import time

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def _age_s() -> float:
    """Seconds since the kernel started this process."""
    with open("/proc/self/stat") as stat:
        started = int(stat.read().rpartition(")")[2].split()[19]) / _CLOCK_TICKS
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

STEPS: list[tuple[str, float, float]] = []
_at = [0.0, 0.0]


def done(step: str) -> None:
    """The step that has just ended; it began where the one before it did end."""
    wall, cpu = _age_s(), time.process_time()
    STEPS.append((step, wall - _at[0], cpu - _at[1]))
    _at[:] = wall, cpu


def after(module: str, name: str, step: str, before: str | None = None) -> None:
    """`step` ends when this function returns, and the one before it when it is called."""
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    inner = getattr(owner, last)

    def timed(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            done(before)
        result = inner(*args, **kwargs)
        done(step)
        return result

    setattr(owner, last, timed)


def watch_worker() -> None:
    """What is imported late is watched once it is there."""
    import gristmill.compute

    find_worker = gristmill.compute.find_worker

    def find_and_watch() -> Any:
        done("model found")
        build = find_worker()
        done("import of the worker")
        return lambda *args: _build(build, *args)

    gristmill.compute.find_worker = find_and_watch


def _build(build: Any, *args: Any) -> Any:
    from gristmill.quick_imports import import_quickly

    import_quickly("torch")
    done("import of torch")
    import_quickly("gristmill_worker.models.loader")
    done("import of transformers")
    for name, step in (
        ("read_config", "configuration"),
        ("probe", "probe"),
        ("check_weights", "weights read"),
        ("forget_pad_token", "weights placed"),
        ("choose_packing", "kernels found"),
        ("let_go_of_files", "files let go"),
    ):
        after("gristmill_worker.models.loader", name, step)
    for name, step in (
        ("fuse_modules", "modules fused"),
        ("pack_model", "weights packed"),
        ("fuse_positions", "positions fused"),
    ):
        after("gristmill_worker.models.fuse", name, step)
    importlib.import_module("gristmill_worker.build")
    done("import of the engine")
    after("gristmill_worker.build", "build_engine", "engine built", before="tokenizer")
    worker = build(*args)
    done("worker built")
    engine = worker._rows._engine
    step = engine.step

    def timed_step() -> Any:
        if not any(name == "shard received" for name, *_ in STEPS):
            done("shard received")
        output = step()
        if output.num_decode_tokens or output.finished or output.advanced:
            done("first token")
            print(json.dumps({name: [wall, cpu] for name, wall, cpu in STEPS}), flush=True)
            os._exit(0)
        return output

    engine.step = timed_step
    return worker


if __name__ == "__main__":
    done("interpreter")
    from gristmill.cli import app

    done("import of the command line")
    watch_worker()
    after("gristmill.process.connect", "connect", "queue and store reached", before="settings")
    app(sys.argv[1:])
