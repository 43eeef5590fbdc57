"""The folder in which `gristmill run` keeps its ledger and store: locked, checked, removed again.

Nothing else in the folder is ever touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gristmill.errors import UsageError, WorkFolderMismatch
from gristmill.ledger.batch import Batch
from gristmill.local.locked_folder import LockedFolder
from gristmill.types import ModelPin

#: Whose batches they are, where nobody has to say who he is.
TENANT_ID = "local"
_LEDGER = "ledger.sqlite"
_STORE = "store"
#: Says that the store folder is ours to remove. No key of a Store begins with a dot.
_MARKER = ".gristmill"


class WorkFolder(LockedFolder):
    """See LockedFolder. It can be removed when the run is over."""

    kind, ledger_name, store_name = "work folder", _LEDGER, _STORE

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            taken=f"Another process is running in the work folder {path}. Wait for it, or give "
            "this one another --work-dir.",
        )

    def remove(self) -> None:
        """Take away what is ours, and the folder if nothing else is in it."""
        self.ledger.close()
        # The ledger goes first: without it the rest is only waste, never half a run.
        for suffix in ("", "-wal", "-shm"):
            (self._path / f"{_LEDGER}{suffix}").unlink(missing_ok=True)
        store = self._path / _STORE
        shutil.rmtree(store / "t", ignore_errors=True)
        (store / _MARKER).unlink(missing_ok=True)
        self._lock.remove()
        for folder in (store, self._path):
            with suppress(OSError):
                folder.rmdir()

    def _prepare(self) -> None:
        store = self._path / _STORE
        if store.exists() and not (store / _MARKER).exists() and any(store.iterdir()):
            raise UsageError(
                f"{store} is not a store of Gristmill. Choose another --work-dir, so that your "
                "files and those of the run stay apart."
            )
        store.mkdir(exist_ok=True)
        (store / _MARKER).touch()


def check_same_run(
    path: Path,
    batch: Batch,
    *,
    input_fingerprint: str,
    model: ModelPin,
    options: Mapping[str, Any],
) -> None:
    """Raises WorkFolderMismatch, naming all that differs from the run in the folder."""
    differences = []
    if batch.input_fingerprint != input_fingerprint:
        differences.append("the input has another content (its sha256 differs)")
    for name in ("name", "revision", "tokenizer_hash", "dtype"):
        then, now = getattr(batch.model, name), getattr(model, name)
        if then != now:
            differences.append(f"the model's {name} was {then}, now it is {now}")
    for name, now in options.items():
        if batch.options.get(name) != now:
            differences.append(f"{name} was {batch.options.get(name)}, now it is {now}")
    if differences:
        raise WorkFolderMismatch(
            f"The work folder {path} holds a run that is not this one: {'; '.join(differences)}. "
            "To finish that run, start it as before. To run this one, give another --work-dir, "
            f"or delete {path} and lose what it holds."
        )
