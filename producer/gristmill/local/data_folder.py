"""The folder of `gristmill up`: ledger, store and pepper of a service on one machine."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from gristmill.errors import UsageError
from gristmill.ledger.ledger import Ledger, open_sqlite
from gristmill.local.locked_folder import LockedFolder

# Other names than those of a work folder, which is removed when its run is over.
_LEDGER = "service.sqlite"
_STORE = "objects"
_PEPPER = "pepper"


class DataFolder(LockedFolder):
    """See LockedFolder. Its `pepper` is made with it."""

    kind, ledger_name, store_name = "data folder", _LEDGER, _STORE
    pepper: bytes

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            taken=f"Another service is running in the data folder {path}. Stop it, or give this "
            "one another --data-dir.",
        )

    def _prepare(self) -> None:
        self.pepper = _make_pepper(self._path / _PEPPER)


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
