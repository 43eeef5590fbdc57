"""Large imports without garbage collections."""

from __future__ import annotations

import gc
import sys
import threading
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


def test_who_asks_for_what_another_thread_imports_is_given_it_whole(modules: Path) -> None:
    """As transformers does, the module is another one in the end."""
    (modules / "imported_quickly.py").write_text(
        "import sys, threading, types\n"
        "gate = threading.current_thread().gate\n"
        "gate.begun.set()\n"
        "assert gate.may_end.wait(60)\n"
        "sys.modules[__name__] = types.SimpleNamespace(name='whole')\n"
    )

    class Importer(threading.Thread):
        def __init__(self) -> None:
            super().__init__(daemon=True)
            self.gate = self
            self.begun, self.may_end = threading.Event(), threading.Event()
            self.seen: object = None

        def run(self) -> None:
            import_quickly("imported_quickly")
            self.seen = vars(sys.modules["imported_quickly"]).get("name")

    first, second = Importer(), Importer()
    first.start()
    assert first.begun.wait(60)
    second.start()
    second.join(0.05)
    first.may_end.set()
    first.join(60)
    second.join(60)

    assert (first.seen, second.seen) == ("whole", "whole")
