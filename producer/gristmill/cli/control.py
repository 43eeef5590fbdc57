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
    models: options.Models = None,
    debug: options.Debug = False,
) -> None:
    """Keep every batch of a ledger moving: send Shards, accept results, end what is complete.

    With --model it also reads the uploaded files of batches for that model; its revision and
    GRISTMILL_DTYPE must be those of the workers. Several processes on one ledger are harmless,
    and any may be killed at any moment.
    """
    with failures_reported(debug=debug):
        _serve(ledger_url, queue_url, store_url, models=models or [], health=health, debug=debug)


def _serve(
    ledger_url: str,
    queue_url: str,
    store_url: str,
    *,
    models: list[str],
    health: str,
    debug: bool,
) -> None:
    import time

    from gristmill.cli.settings_from import settings_from
    from gristmill.control.base import Control
    from gristmill.control.loop import ControlLoop
    from gristmill.control.read_uploads import ReadUploads
    from gristmill.control.webhooks import WebhookLoop
    from gristmill.ledger.open import open_ledger
    from gristmill.local.find import find_local_model
    from gristmill.prices import read_prices
    from gristmill.process.connect import connect
    from gristmill.process.health import Health, health_served
    from gristmill.process.logs import log_to_stderr
    from gristmill.process.loop_thread import LoopThread
    from gristmill.process.signals import StopSignals

    log_to_stderr(debug=debug)
    settings = settings_from()
    ledger = open_ledger(ledger_url)
    queue, store = connect(queue_url, store_url, settings)
    prices = read_prices(settings.prices)
    control = Control(ledger, store, queue, time.time, settings, prices=prices)
    loop = ControlLoop(control)
    catalogue = [find_local_model(m, settings=settings, revision=None)[0] for m in models]
    uploads = ReadUploads(control, catalogue)
    webhooks = WebhookLoop(control)
    signals = StopSignals(grace_s=settings.drain_grace_s, at_once_code=ExitCode.OK)

    def read_health() -> Health:
        is_stopping = signals.stop.is_set()
        troubles = tuple(filter(None, (loop.trouble, uploads.trouble, webhooks.trouble)))
        return Health(
            live=True,
            ready=not (is_stopping or troubles),
            state="draining" if is_stopping else "running",
            troubles=troubles,
        )

    with signals, health_served(health, read_health):
        signals.hold()
        threads = [LoopThread(webhooks.run, signals.stop, name="webhooks")]
        if catalogue:
            threads.append(LoopThread(uploads.run, signals.stop, name="ingest"))
        loop.run(signals.stop)
        uploads.wake()
        for thread in threads:
            thread.join()
    queue.close()
    ledger.close()
