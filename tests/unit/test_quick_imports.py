"""Large imports without garbage collections."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.quick_imports import import_quickly


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("imported_quickly", None)
    gc.unfreeze()


def test_no_garbage_is_looked_for_during_an_import_and_what_it_made_is_set_aside(
    modules: Path,
) -> None:
    (modules / "imported_quickly.py").write_text("import gc\nwas_enabled = gc.isenabled()\n")
    assert gc.isenabled()

    import_quickly("imported_quickly")

    assert sys.modules["imported_quickly"].was_enabled is False
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_what_is_there_already_sets_nothing_aside(modules: Path) -> None:
    gc.unfreeze()

    import_quickly("sys")

    assert gc.get_freeze_count() == 0


def test_an_import_that_fails_says_so_and_collections_go_on(modules: Path) -> None:
    (modules / "imported_quickly.py").write_text("raise ValueError('no such luck')\n")

    with pytest.raises(ValueError, match="no such luck"):
        import_quickly("imported_quickly")

    assert gc.isenabled()
