"""A run whose rows are answered by a worker behind a queue: what it leaves on that queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest
from aws_server import running_aws
from fake_engine import FakeEngine
from local_run import Desk, make_line
from pipeline import fast_folder
from redis_server import shared_server

from gristmill import local
from gristmill.compute import worker_config
from gristmill.local_model import find_local_model
from gristmill.process.connect import connect
from gristmill_worker.worker import Worker


@dataclass(frozen=True)
class Server:
    url: str
    #: The Lanes that there is anything of, even if it is empty.
    lanes: Callable[[], set[str]]


@contextmanager
def redis() -> Iterator[Server]:
    server, prefix = shared_server("redis6"), f"test-{uuid4().hex}"
    with server.client as client:

        def lanes() -> set[str]:
            return {key.decode().split(":")[1] for key in client.scan_iter(f"{{{prefix}}}:*")}

        yield Server(f"{server.url}?prefix={prefix}", lanes)


@contextmanager
def sqs() -> Iterator[Server]:
    prefix = f"t-{uuid4().hex[:8]}"
    with running_aws() as aws:

        def lanes() -> set[str]:
            found = aws.client("sqs").list_queues(QueueNamePrefix=f"{prefix}-").get("QueueUrls", ())
            names = {url.rpartition(f"{prefix}-")[2] for url in found}
            return {name.removesuffix("-dead") for name in names}

        yield Server(f"sqs://{prefix}?endpoint={aws.url}", lanes)


@contextmanager
def worker_of(
    desk: Desk, server: Server, store: str, *, max_model_len: int | None = None
) -> Iterator[None]:
    """A Worker in a thread, with an Engine whose answers are known."""
    queue, opened = connect(server.url, store, desk.settings)
    model, device = find_local_model(str(desk.model), settings=desk.settings, revision=None)
    config = worker_config(
        desk.settings,
        model_path=model.path,
        pin=model.pin,
        max_model_len=max_model_len or model.max_model_len,
        device=device,
        idle_wait_s=0.05,
    )
    worker, stop = Worker(FakeEngine(max_num_seqs=8), queue, opened, config), threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        queue.close()


@pytest.mark.parametrize("running", [redis, sqs])
@pytest.mark.parametrize("keep_work", [False, True])
def test_a_run_that_has_ended_takes_the_lane_of_its_bells_with_it(
    running: Callable[[], object], keep_work: bool
) -> None:
    server: Server
    with fast_folder() as folder, running() as server:  # type: ignore[attr-defined]
        store = str(folder / "shared")
        desk = Desk(folder, keep_work=keep_work, fleet=local.Fleet(server.url, store))
        desk.write([make_line(f"r{idx}") for idx in range(10)])

        interrupted = desk.run(should_stop=lambda: desk.progress[-1].phase == "running")
        own = server.lanes() - {"bulk", "control"}
        with worker_of(desk, server, store):
            summary = desk.run()

        assert interrupted.status == "interrupted"
        assert len(own) == 1, "it will go on hearing there"
        assert (summary.status, summary.completed) == ("completed", 10)
        left = {lane for lane in server.lanes() if not lane.startswith("pool-")}
        assert left <= {"bulk", "control"}, "but for that of the worker's pool"


def test_workers_with_a_lower_limit_answer_all_rows_of_a_run_or_refuse_them() -> None:
    """Nobody tells a run what workers there are, so that they give nothing back."""
    with fast_folder() as folder, redis() as server:
        store = str(folder / "shared")
        desk = Desk(folder, fleet=local.Fleet(server.url, store))
        desk.write([make_line(f"r{idx}") for idx in range(10)])

        with worker_of(desk, server, store, max_model_len=4):
            summary = desk.run()

    assert (summary.status, summary.completed) == ("completed", 10)
