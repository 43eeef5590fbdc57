"""A bucket on a server of its own process, for data sets at s3:// places."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services"))

from aws_server import AwsServer, aws

__all__ = ["aws"]


@pytest.fixture
def bucket(aws: AwsServer) -> str:
    return aws.new_bucket()
