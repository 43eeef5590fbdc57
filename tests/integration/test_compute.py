"""How the control side finds the compute side, and what it says when there is none."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from gristmill import compute
from gristmill.errors import UsageError
from gristmill_worker import worker


def test_the_worker_is_found_by_its_entry_point() -> None:
    assert compute.find_worker() is worker.build


def test_a_machine_without_the_compute_side_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compute, "entry_points", lambda **_: importlib.metadata.EntryPoints())

    with pytest.raises(UsageError, match=r"pip install 'gristmill\[worker\]'"):
        compute.find_worker()


def test_a_compute_side_that_lacks_a_library_is_told_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "gristmill_worker.worker")
    monkeypatch.setitem(sys.modules, "gristmill_worker.leases", None)

    with pytest.raises(UsageError, match=r"lacks the module gristmill_worker\.leases.*\[worker\]"):
        compute.find_worker()
