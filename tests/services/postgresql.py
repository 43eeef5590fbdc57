"""A PostgreSQL server of the tests' own, with an empty database; it can be killed and restarted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ports import free_port

from gristmill.errors import StoreError
from gristmill.ledger.open import open_ledger

_START_S = 60.0


@dataclass
class PostgresqlProcess:
    """One server of its own port and folder."""

    #: Where its programs lie.
    binaries: Path
    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://gristmill@127.0.0.1:{self.port}/postgres"

    def make(self) -> subprocess.CompletedProcess[str]:
        """The data of an empty database."""
        if self._run_as:
            os.chown(self.folder, 65534, 65534)
        return subprocess.run(
            [
                *(*self._run_as, str(self.binaries / "initdb"), "-D", str(self.folder / "data")),
                *("-U", "gristmill", "-A", "trust", "-N"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )

    def start(self) -> None:
        """Until it answers. What it has lost its hold of, after a kill, it takes up again."""
        give_up_at = time.monotonic() + _START_S
        while True:
            # Beginning again: after a kill it waits for the last of its old processes.
            if self._process is None or self._process.poll() is not None:
                self._process = self._run()
            try:
                open_ledger(self.url).close()
                return
            except StoreError:
                assert time.monotonic() < give_up_at, "PostgreSQL does not answer"
                time.sleep(0.05)

    def kill(self) -> None:
        """As by kill -9; what lies on the disk stays."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def _run(self) -> subprocess.Popen[bytes]:
        options = (f"port={self.port}", "listen_addresses=127.0.0.1", "fsync=off")
        return subprocess.Popen(
            [
                *(*self._run_as, str(self.binaries / "postgres"), "-D", str(self.folder / "data")),
                *("-k", str(self.folder), *(word for option in options for word in ("-c", option))),
            ],
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )

    @property
    def _run_as(self) -> tuple[str, ...]:
        """The server refuses to run as root."""
        as_other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        return as_other if os.getuid() == 0 else ()


@pytest.fixture(scope="module")
def postgresql_process() -> Iterator[PostgresqlProcess]:
    """A server that runs; skipped where there is no PostgreSQL."""
    found = shutil.which("initdb") if shutil.which("postgres") else None
    places = [Path(found).parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if not places:
        pytest.skip("needs PostgreSQL (Debian: postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="gristmill-pg-"))
    process = PostgresqlProcess(places[0], folder)
    made = process.make()
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL cannot be set up here: {made.stderr[-300:]}")
    process.start()
    yield process
    process.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def postgresql(postgresql_process: PostgresqlProcess) -> str:
    """The URL of a server of its own; skipped where there is no PostgreSQL."""
    return postgresql_process.url
