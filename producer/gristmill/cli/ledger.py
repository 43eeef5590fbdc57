"""`gristmill ledger`: finds the truth again in the store, for a ledger that was lost or is old."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import failures_reported
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.ledger.ledger import Ledger
    from gristmill.stores.base import Store

app = typer.Typer(
    help="The ledger: rebuild it from the store.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="The folder of `gristmill up`.")
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        envvar="GRISTMILL_LEDGER",
        help="The ledger of a fleet, which may be empty; with --store.",
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", envvar="GRISTMILL_STORE", help="The store of a fleet."),
]


@app.callback()
def _ledger() -> None:
    # A callback keeps `rebuild` a command of its own while it is the only one.
    pass


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
