"""`gristmill ledger`: upgrades its tables, or finds its truth again in the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import failures_reported
from gristmill.cli.ledger_door import DataDir
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.ledger.ledger import Ledger
    from gristmill.stores.base import Store

app = typer.Typer(
    help="The ledger: upgrade its tables, or rebuild it from the store.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        envvar="GRISTMILL_LEDGER",
        help="The ledger of a fleet, which may be empty; with --store.",
    ),
]
OneLedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger", metavar="URL", envvar="GRISTMILL_LEDGER", help="The ledger of a fleet."
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", envvar="GRISTMILL_STORE", help="The store of a fleet."),
]


@app.command()
def migrate(ledger_url: OneLedgerUrl, debug: options.Debug = False) -> None:
    """Make the tables of a fleet's ledger, or bring them up to this version, and end.

    Every process does so when it starts; done ahead, once, an upgrade does not wait for it.
    Processes of the version before that still run go on.
    """
    with failures_reported(debug=debug):
        from gristmill.cli.needs import server_needed

        with server_needed():
            from gristmill.ledger.migrate import SCHEMA_VERSION
            from gristmill.ledger.open import open_ledger
        open_ledger(ledger_url).close()
        typer.echo(f"The ledger has the tables of this version (schema {SCHEMA_VERSION}).")


@app.command()
def rebuild(
    data_dir: DataDir = None,
    ledger_url: LedgerUrl = None,
    store_url: StoreUrl = None,
    debug: options.Debug = False,
) -> None:
    """Bring a lost ledger, or an old copy of it, to what the store says.

    Stop the service, or every `api` and `control` of the fleet, before it. Batches go on, with
    what their workers have stored, when these start again. API keys, webhook endpoints and quotas
    are not in the store: make them anew if the ledger was lost.
    """
    with failures_reported(debug=debug), _opened(data_dir, ledger_url, store_url) as opened:
        from gristmill.cli.settings_from import settings_from
        from gristmill.control.base import Control
        from gristmill.control.rebuild import rebuild as rebuild_ledger
        from gristmill.queues.memory import MemoryQueue

        ledger, store = opened
        settings = settings_from()
        control = Control(ledger, store, MemoryQueue(settings.lease_s), time.time, settings)
        found = rebuild_ledger(control)
        typer.echo(
            f"Batches: {found.num_open} go on, {found.num_ended} had ended, {found.num_known} "
            f"were known to have ended, {found.num_lost_batches} were deleted since."
        )
        typer.echo(
            f"Files: {found.num_files} uploads found, {found.num_lost_files} are gone from the "
            "store."
        )


@contextmanager
def _opened(
    data_dir: Path | None, ledger_url: str | None, store_url: str | None
) -> Iterator[tuple[Ledger, Store]]:
    from gristmill.cli.needs import server_needed

    with server_needed():
        from gristmill.ledger.open import open_ledger
        from gristmill.local.data_folder import DataFolder
        from gristmill.stores.open import open_store
    if data_dir is not None:
        if not data_dir.is_dir():
            raise UsageError(f"There is no folder {data_dir}.")
        with DataFolder(data_dir) as folder:
            yield folder.ledger, folder.store
        return
    if ledger_url is None or store_url is None:
        raise UsageError(
            "Say which: --data-dir DIR of `gristmill up`, or --ledger URL and --store URL of a "
            "fleet."
        )
    store = open_store(store_url)
    store.probe()
    ledger = open_ledger(ledger_url)
    try:
        yield ledger, store
    finally:
        ledger.close()
