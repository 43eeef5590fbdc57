"""How a command of an operator comes to the ledger itself: of one machine, or of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.ledger.ledger import Ledger
    from gristmill.settings import Settings

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="The folder of `gristmill up`.")
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        envvar="GRISTMILL_LEDGER",
        help="The ledger of a fleet; with GRISTMILL_KEY_PEPPER.",
    ),
]


def pepper_of(settings: Settings) -> bytes:
    """The setting's. Raises UsageError where it is not set."""
    if settings.key_pepper is None:
        raise UsageError(
            "GRISTMILL_KEY_PEPPER is not set. API keys are hashed under it: set a secret of at "
            "least 16 characters, the same for all processes of the API, and keep it."
        )
    return settings.key_pepper.get_secret_value().encode()


@contextmanager
def opened_ledger(data_dir: Path | None, ledger_url: str | None) -> Iterator[tuple[Ledger, bytes]]:
    """Ledger and pepper of a service, on one machine or of a fleet. Raises UsageError."""
    from gristmill.cli.needs import server_needed
    from gristmill.cli.settings_from import settings_from

    with server_needed():
        from gristmill.ledger.open import open_ledger
        from gristmill.local.data_folder import open_keys
    if data_dir is not None:
        ledger, pepper = open_keys(data_dir)
    elif ledger_url is not None:
        pepper = pepper_of(settings_from())
        ledger = open_ledger(ledger_url)
    else:
        raise UsageError("Say which: --data-dir DIR of `gristmill up`, or --ledger URL of a fleet.")
    try:
        yield ledger, pepper
    finally:
        ledger.close()
