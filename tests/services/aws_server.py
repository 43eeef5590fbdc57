"""S3 and SQS as a process of its own, spoken to over HTTP: the server of moto.

It checks neither secrets nor checksums, and old receipt handles still work; `unruly_proxy` says
what it does not.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

START_S = 60.0
REGION = "us-east-1"


@dataclass(frozen=True)
class AwsServer:
    url: str
    pid: int
    #: Holds by how many seconds the server's clock is ahead.
    clock: Path

    def client(self, service: str) -> Any:
        """A plain client of boto3, for what a test arranges or looks at behind our back."""
        return _client(service, self.url)

    def advance(self, seconds: float) -> None:
        """Put the clock of SQS forward."""
        ahead = float(self.clock.read_text()) + seconds
        beside = self.clock.with_suffix(".new")
        beside.write_text(str(ahead))
        beside.replace(self.clock)

    def new_bucket(self) -> str:
        name = f"bucket-{secrets.token_hex(6)}"
        self.client("s3").create_bucket(Bucket=name)
        return name

    def s3_url(self, bucket: str, prefix: str = "some/prefix", **parameters: object) -> str:
        """An s3:// URL of this server, or of the `endpoint` given."""
        parameters = {"endpoint": self.url, **parameters}
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"s3://{bucket}/{prefix}?{query}"


@cache
def _client(service: str, url: str) -> Any:
    import boto3

    return boto3.session.Session().client(service, endpoint_url=url, region_name=REGION)


@contextmanager
def aws_environment() -> Iterator[None]:
    """Credentials of a test, and none of the machine's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@contextmanager
def running_aws() -> Iterator[AwsServer]:
    """The server of this test process, started once; skips the test where moto is not there."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("needs moto (pip install 'gristmill[dev]')")
    with aws_environment():
        yield _server()


@pytest.fixture
def aws() -> Iterator[AwsServer]:
    with running_aws() as server:
        yield server


@cache
def _server() -> AwsServer:
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="gristmill-aws-"))
    clock = folder / "clock"
    clock.write_text("0")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("aws_process.py")), str(port), clock],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    atexit.register(shutil.rmtree, folder)
    atexit.register(process.wait)
    atexit.register(process.kill)  # called first: the last registered goes first
    give_up_at = time.monotonic() + START_S
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return AwsServer(f"http://127.0.0.1:{port}", process.pid, clock)
        except OSError:
            time.sleep(0.05)
    said = (folder / "log").read_text()[-2000:]
    raise RuntimeError(f"The S3 and SQS server does not start: {said}")
