"""One tiny model of each architecture for the whole session."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from tiny import as_loaded, make_model

torch.set_num_threads(1)


@functools.cache
def _pair(name: str) -> tuple[Any, Any]:
    oracle = make_model(name)
    return oracle, as_loaded(oracle)


@pytest.fixture(scope="session")
def model_pair() -> Any:
    """name -> (oracle of transformers, the same weights for the Engine)"""
    return _pair
