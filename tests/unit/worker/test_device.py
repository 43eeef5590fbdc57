"""The settings `device` and `dtype`, down to the pin and the loader."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gristmill.compute import find_device, find_dtype
from gristmill.errors import UsageError
from gristmill_worker import device


@pytest.mark.parametrize(
    ("wanted", "where", "dtype"),
    [
        ("auto", "cpu", "float32"),
        ("auto", "cuda", "bfloat16"),
        ("float16", "cuda", "float16"),
        ("bfloat16", "cpu", "bfloat16"),
    ],
)
def test_the_dtype_of_the_pin_follows_the_device_unless_it_is_given(
    wanted: str, where: str, dtype: str
) -> None:
    assert find_dtype(wanted, where) == dtype


def test_a_device_that_is_given_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.compute.entry_points", None)

    assert [find_device(name) for name in ("cpu", "cuda")] == ["cpu", "cuda"]


def test_without_the_compute_side_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.compute.entry_points", lambda **_: ())

    assert find_device("auto") == "cpu"


def test_without_a_driver_torch_is_not_even_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device, "_DRIVER_FILES", (tmp_path / "none",))
    monkeypatch.setitem(sys.modules, "torch", None)

    assert device.find_device() == "cpu"


@pytest.mark.parametrize(("is_available", "found"), [(True, "cuda"), (False, "cpu")])
def test_with_a_driver_torch_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_available: bool, found: str
) -> None:
    monkeypatch.setattr(device, "_DRIVER_FILES", (tmp_path,))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)

    assert device.find_device() == found


def test_a_gpu_that_is_not_there_is_said_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gristmill_worker.models.loader import load_model

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(UsageError, match="GRISTMILL_DEVICE=cpu"):
        load_model(tmp_path, device="cuda")
