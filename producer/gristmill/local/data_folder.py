"""The folder of `gristmill up`: ledger, store and pepper of a service on one machine."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from gristmill.errors import UsageError
from gristmill.ledger.ledger import Ledger, open_sqlite
from gristmill.local.folder_lock import FolderLock
from gristmill.stores.local import LocalStore

# Other names than those of a work folder, which is removed when its run is over.
_LEDGER = "service.sqlite"
_STORE = "objects"
_PEPPER = "pepper"


class DataFolder:
    """While entered, no other service can use the folder. Raises UsageError when one does."""

    ledger: Ledger
    store: LocalStore
    pepper: bytes

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FolderLock(
            path,
            taken=f"Another service is running in the data folder {path}. Stop it, or give this "
            "one another --data-dir.",
        )

    def __enter__(self) -> Self:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            self.pepper = _make_pepper(self._path / _PEPPER)
            self.ledger = open_sqlite(self._path / _LEDGER)
        except OSError as error:
            self._lock.drop()
            raise UsageError(f"The data folder {self._path} cannot be used: {error}.") from error
        except UsageError:
            self._lock.drop()
            raise
        self.store = LocalStore(self._path / _STORE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.ledger.close()
        self._lock.drop()


def open_keys(path: Path) -> tuple[Ledger, bytes]:
    """Ledger and pepper of a data folder whose service may be running. Raises UsageError."""
    if not (path / _LEDGER).is_file():
        raise UsageError(
            f"{path} is no data folder of Gristmill. `gristmill up --data-dir {path}` makes one."
        )
    return open_sqlite(path / _LEDGER), _make_pepper(path / _PEPPER)


def _make_pepper(path: Path) -> bytes:
    """What lies in the file, which is made now if need be; only its owner can read it."""
    if not path.exists():
        draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(32).encode())
        draft.replace(path)
    return path.read_bytes()
