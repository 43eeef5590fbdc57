"""`gristmill control`: dispatches, accepts, ends batches and repairs, for all of a Ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import ExitCode, failures_reported

LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger",
        metavar="URL",
        envvar="GRISTMILL_LEDGER",
        help="A file of SQLite, or postgresql://user@host/database.",
    ),
]


def control(
    ledger_url: LedgerUrl,
    queue_url: options.QueueUrl,
    store_url: options.StoreUrl,
    health: options.HealthAddress = "127.0.0.1:0",
    debug: options.Debug = False,
) -> None:
    """Keep every batch of a ledger moving: send Shards, accept results, end what is complete.

    Several on one ledger are harmless, and any may be killed at any moment.
    """
    with failures_reported(debug=debug):
        _serve(ledger_url, queue_url, store_url, health=health, debug=debug)


def _serve(ledger_url: str, queue_url: str, store_url: str, *, health: str, debug: bool) -> None:
    import time

    from gristmill.cli.settings_from import settings_from
    from gristmill.control.base import Control
    from gristmill.control.loop import ControlLoop
    from gristmill.ledger.open import open_ledger
    from gristmill.process.connect import connect
    from gristmill.process.health import Health, health_served
    from gristmill.process.logs import log_to_stderr
    from gristmill.process.signals import StopSignals

    log_to_stderr(debug=debug)
    settings = settings_from()
    ledger = open_ledger(ledger_url)
    queue, store = connect(queue_url, store_url, settings)
    loop = ControlLoop(Control(ledger, store, queue, time.time, settings))
    signals = StopSignals(grace_s=settings.drain_grace_s, at_once_code=ExitCode.OK)

    def read_health() -> Health:
        is_stopping = signals.stop.is_set()
        return Health(
            live=True,
            ready=not (is_stopping or loop.trouble),
            state="draining" if is_stopping else "running",
            troubles=(loop.trouble,) if loop.trouble else (),
        )

    with signals, health_served(health, read_health):
        signals.hold()
        loop.run(signals.stop)
    queue.close()
    ledger.close()
