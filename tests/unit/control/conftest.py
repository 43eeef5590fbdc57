"""Lets the tests here import what they share, and what the tests of the pipeline share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "integration"))
sys.path.insert(0, str(Path(__file__).parents[2] / "services"))
sys.path.insert(0, str(Path(__file__).parent))

from pipeline import Bench, fast_folder


@pytest.fixture
def bench() -> Iterator[Bench]:
    with fast_folder() as folder:
        bench = Bench(folder)
        yield bench
        bench.ledger.close()
