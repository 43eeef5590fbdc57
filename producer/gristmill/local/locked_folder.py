"""A folder with a ledger and a store that one process at a time may use."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from gristmill.errors import UsageError
from gristmill.folder_lock import FolderLock
from gristmill.ledger.ledger import Ledger, open_sqlite
from gristmill.stores.local import LocalStore


class LockedFolder:
    """While entered, no other process can use the folder. Raises UsageError when one does.

    A kind of folder names itself and its two parts, and does in `_prepare` what else it needs.
    """

    kind: str
    ledger_name: str
    store_name: str
    ledger: Ledger
    store: LocalStore

    def __init__(self, path: Path, *, taken: str) -> None:
        self._path = path
        self._lock = FolderLock(path, taken=taken)

    def __enter__(self) -> Self:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            self._prepare()
            self.ledger = open_sqlite(self._path / self.ledger_name)
        except OSError as error:
            self._lock.drop()
            raise UsageError(f"The {self.kind} {self._path} cannot be used: {error}.") from error
        except UsageError:
            self._lock.drop()
            raise
        self.store = LocalStore(self._path / self.store_name)
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()
        self._lock.drop()

    def _prepare(self) -> None:
        """What comes before the ledger is opened. Raises UsageError or OSError."""
