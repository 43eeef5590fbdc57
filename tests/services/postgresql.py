"""A PostgreSQL server of the tests' own, with an empty database."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

from gristmill.errors import StoreError
from gristmill.ledger.open import open_ledger


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The URL of a server of its own; skipped where there is no PostgreSQL."""
    initdb, postgres = shutil.which("initdb"), shutil.which("postgres")
    if initdb is None or postgres is None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not found:
            pytest.skip("needs PostgreSQL (Debian: postgresql)")
        initdb, postgres = str(found[-1] / "initdb"), str(found[-1] / "postgres")
    # The server refuses to run as root.
    as_other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    run_as = as_other if os.getuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="gristmill-pg-"))
    if run_as:
        os.chown(folder, 65534, 65534)
    data, port = folder / "data", free_port()
    made = subprocess.run(
        [*run_as, initdb, "-D", str(data), "-U", "gristmill", "-A", "trust", "-N"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL cannot be set up here: {made.stderr[-300:]}")
    options = ["-c", f"port={port}", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    server = subprocess.Popen(
        [*run_as, postgres, "-D", str(data), "-k", str(folder), *options],
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    url = f"postgresql://gristmill@127.0.0.1:{port}/postgres"
    give_up_at = time.monotonic() + 30
    while True:
        try:
            open_ledger(url).close()
            break
        except StoreError:
            assert time.monotonic() < give_up_at, "PostgreSQL does not answer"
            time.sleep(0.1)
    yield url
    server.send_signal(signal.SIGINT)
    server.wait()
    shutil.rmtree(folder, ignore_errors=True)
