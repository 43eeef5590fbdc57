"""A bucket on a server of its own process, and a proxy before it that misbehaves by script."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services"))

from aws_server import AwsServer, aws
from unruly_proxy import UnrulyProxy, unruly_proxy

__all__ = ["aws"]


@pytest.fixture
def proxy(aws: AwsServer) -> Iterator[UnrulyProxy]:
    with unruly_proxy(aws.url) as proxy:
        yield proxy


@pytest.fixture
def bucket(aws: AwsServer) -> str:
    return aws.new_bucket()
