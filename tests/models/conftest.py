"""One tiny model of each architecture for the whole session, in the two ways the Engine has."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "integration"))

from tiny import as_loaded, make_model

from gristmill_worker.attention.compiled import CompiledAttention, load_kernel

torch.set_num_threads(1)


@functools.cache
def _oracle(name: str) -> Any:
    return make_model(name)


@functools.cache
def _pair(name: str, packed: bool = False) -> tuple[Any, Any]:
    return _oracle(name), as_loaded(_oracle(name), packed=packed)


@pytest.fixture(scope="session")
def model_pair() -> Any:
    """name -> (oracle of transformers, the same weights for the Engine)"""
    return _pair


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledAttention:
    kernel = load_kernel(tmp_path_factory.mktemp("kernel"))
    if kernel is None:
        pytest.skip("needs a C compiler")
    return CompiledAttention(kernel)
