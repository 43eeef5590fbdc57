"""What befalls the processes of an arena, its queue and its store, at random."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from arena import ENDED, Arena, Life, Nursery
from aws_server import running_aws
from redis_server import RedisProcess
from tcp_proxy import TcpProxy, tcp_proxy
from unruly_proxy import Rule, UnrulyProxy, cut_after, lose_reply, refuse, refuse_json, unruly_proxy

from gristmill.crash_points import WORKER_POINTS

NUM_WORKERS = 4
_AOF = ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec")

Fault = Callable[[], None]


@dataclass
class Weather:
    """The faults that can be had here, and what has to be put right again later."""

    arena: Arena
    rng: random.Random
    control: Life
    faults: dict[str, Fault] = field(default_factory=dict)
    #: (when, what): a thaw, the end of a delay, a disk that has room again.
    _remedies: list[tuple[float, Fault]] = field(default_factory=list)
    clock_jumps: bool = True

    def __post_init__(self) -> None:
        self.faults |= {
            "SIGKILL": self._kill,
            "SIGTERM": self._terminate,
            "SIGSTOP": self._freeze,
            "control killed": self._kill_control,
            "control frozen": self._freeze_control,
            "crash point": self._crash_point,
        }
        if self.clock_jumps:
            self.faults["clock an hour off"] = self._clock_jump

    def strike(self, name: str | None = None) -> None:
        """One fault, of a kind that is chosen at random."""
        name = name or self.rng.choice(list(self.faults))
        self.faults[name]()

    def tend(self) -> None:
        """What supervisors do, and time: start what has died, end what has a term."""
        now = time.monotonic()
        for remedy in [remedy for remedy in self._remedies if remedy[0] <= now]:
            self._remedies.remove(remedy)
            remedy[1]()
        if not self.control.is_alive and self.control.exit_code not in ENDED:
            self.control = self.arena.start_control()
        while len(self.arena.workers()) < NUM_WORKERS:
            self.arena.start_worker()

    def calm(self) -> None:
        """Put everything right at once."""
        for _, remedy in self._remedies:
            remedy()
        self._remedies.clear()

    def later(self, after_s: float, remedy: Fault) -> None:
        self._remedies.append((time.monotonic() + after_s, remedy))

    def _victim(self) -> Life:
        return self.rng.choice(self.arena.workers())

    def _kill(self) -> None:
        self.arena.hurt(self._victim(), signal.SIGKILL)

    def _terminate(self) -> None:
        self.arena.hurt(self._victim(), signal.SIGTERM)

    def _freeze(self) -> None:
        self._freeze_for(self._victim(), self.rng.uniform(0.3, 3.0) * self.arena.lease_s)

    def _kill_control(self) -> None:
        if self.control.is_alive:
            self.arena.note("control killed")
            self.control.kill(signal.SIGKILL)

    def _freeze_control(self) -> None:
        self._freeze_for(self.control, self.rng.uniform(0.3, 1.5) * self.arena.lease_s)

    def _freeze_for(self, life: Life, seconds: float) -> None:
        if life.is_alive:
            self.arena.hurt(life, signal.SIGSTOP)
            self.later(seconds, lambda: life.is_alive and self.arena.hurt(life, signal.SIGCONT))

    def _crash_point(self) -> None:
        """A worker is killed, and one takes its place that will die, fail or hang somewhere."""
        self._kill()
        plan = f"{self.rng.choice(WORKER_POINTS)}={self.rng.choice(['exit', 'raise', 'fail'])}"
        self.arena.note("crash point", plan=plan)
        self.arena.start_worker(plan=f"{plan}:{self.rng.randint(1, 4)}")

    def _clock_jump(self) -> None:
        self._kill()
        self.arena.note("clock an hour off")
        self.arena.start_worker(clock_jump_s=3600.0)


@contextmanager
def redis_and_folder(folder: Path, nursery: Nursery, **options: Any) -> Iterator[Weather]:
    """Redis behind a proxy, and a folder whose disk may be full."""
    server = RedisProcess("redis6", _AOF).start()
    try:
        with tcp_proxy(server.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}/0?prefix=storm"
            weather = _begin(folder, nursery, url, "", options)
            arena = weather.arena
            weather.faults |= _redis_faults(weather, server, proxy)

            def fill_disk() -> None:
                arena.note("disk full")
                arena.disk_full_flag.touch()
                weather.later(1.0, lambda: arena.disk_full_flag.unlink(missing_ok=True))

            weather.faults["disk full"] = fill_disk
            yield from _until_closed(weather)
    finally:
        server.remove()


@contextmanager
def redis_and_s3(folder: Path, nursery: Nursery, **options: Any) -> Iterator[Weather]:
    server = RedisProcess("redis6", _AOF).start()
    try:
        with (
            tcp_proxy(server.port) as proxy,
            running_aws() as aws,
            unruly_proxy(aws.url) as unruly,
        ):
            url = f"redis://127.0.0.1:{proxy.port}/0?prefix=storm"
            store = aws.s3_url(aws.new_bucket(), endpoint=unruly.url)
            weather = _begin(folder, nursery, url, store, options)
            weather.faults |= _redis_faults(weather, server, proxy) | _s3_faults(weather, unruly)
            yield from _until_closed(weather)
    finally:
        server.remove()


@contextmanager
def sqs_and_s3(folder: Path, nursery: Nursery, **options: Any) -> Iterator[Weather]:
    with running_aws() as aws, unruly_proxy(aws.url) as unruly:
        queue = f"sqs://storm-{uuid4().hex[:8]}?endpoint={unruly.url}"
        store = aws.s3_url(aws.new_bucket(), endpoint=unruly.url)
        weather = _begin(folder, nursery, queue, store, options)
        weather.faults |= _s3_faults(weather, unruly) | _sqs_faults(weather, unruly)
        yield from _until_closed(weather)


PLACES = {
    "Redis + folder": redis_and_folder,
    "Redis + S3": redis_and_s3,
    "SQS + S3": sqs_and_s3,
}


def _begin(
    folder: Path, nursery: Nursery, queue_url: str, store_url: str, options: dict[str, Any]
) -> Weather:
    rng, input_file = random.Random(options.pop("seed")), options.pop("input")
    arena = Arena(folder, nursery, queue_url, store_url, **options)
    shutil.copy(input_file, arena.input)
    weather = Weather(arena, rng, arena.start_control())
    return weather


def _until_closed(weather: Weather) -> Iterator[Weather]:
    try:
        yield weather
    finally:
        weather.arena.close()


def _redis_faults(weather: Weather, server: RedisProcess, proxy: TcpProxy) -> dict[str, Fault]:
    note = weather.arena.note

    def flush() -> None:
        note("FLUSHALL")
        with server.client as client:
            client.flushall()

    def restart() -> None:
        note("Redis restarted")
        server.kill()
        server.start()

    def restart_empty() -> None:
        note("Redis restarted empty")
        server.kill()
        for path in Path(server.folder).iterdir():
            if path.name != "server.log":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        server.start()

    def cut() -> None:
        note("connections cut")
        proxy.cut_all()

    def half_close() -> None:
        note("connections half closed")
        proxy.half_close_all()

    def delay() -> None:
        note("replies late")
        proxy.delay_s = 0.2
        weather.later(1.0, lambda: setattr(proxy, "delay_s", 0.0))

    def mute() -> None:
        note("replies swallowed")
        proxy.is_mute = True

        def speak() -> None:
            proxy.is_mute = False
            proxy.cut_all()

        weather.later(1.0, speak)

    return {
        "FLUSHALL": flush,
        "Redis restarted": restart,
        "Redis restarted empty": restart_empty,
        "connections cut": cut,
        "connections half closed": half_close,
        "replies late": delay,
        "replies swallowed": mute,
    }


def _s3_faults(weather: Weather, unruly: UnrulyProxy) -> dict[str, Fault]:
    def fits(request: Any) -> bool:
        return "x-amz-target" not in {name.lower() for name in request.headers}

    return {
        "S3 says 503": _rules(weather, unruly, "S3 says 503", refuse(503, "SlowDown"), fits, 30),
        "S3 says 500": _rules(
            weather, unruly, "S3 says 500", refuse(500, "InternalError"), fits, 20
        ),
        "replies of S3 lost": _rules(weather, unruly, "replies of S3 lost", lose_reply, fits, 5),
        "bodies of S3 cut": _rules(weather, unruly, "bodies of S3 cut", cut_after(20), fits, 5),
    }


def _sqs_faults(weather: Weather, unruly: UnrulyProxy) -> dict[str, Fault]:
    def fits(request: Any) -> bool:
        return "x-amz-target" in {name.lower() for name in request.headers}

    throttled = refuse_json(400, "RequestThrottled")
    return {
        "SQS throttles": _rules(weather, unruly, "SQS throttles", throttled, fits, 30),
        "SQS says 503": _rules(
            weather, unruly, "SQS says 503", refuse_json(503, "ServiceUnavailable"), fits, 30
        ),
        "replies of SQS lost": _rules(weather, unruly, "replies of SQS lost", lose_reply, fits, 8),
    }


def _rules(
    weather: Weather, unruly: UnrulyProxy, name: str, act: Any, fits: Any, times: int
) -> Fault:
    def strike() -> None:
        weather.arena.note(name)
        unruly.seen.clear()
        unruly.rules[:] = [rule for rule in unruly.rules if rule.times > 0]
        rule = Rule(act, fits, times)
        unruly.rules.append(rule)
        weather.later(2.0, lambda: setattr(rule, "times", 0))

    return strike
