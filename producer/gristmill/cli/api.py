"""`gristmill api`: the API alone, over the ledger and store of a fleet."""

from __future__ import annotations

import typer

from gristmill.cli import options
from gristmill.cli.control import LedgerUrl
from gristmill.cli.failures import ExitCode, failures_reported


def api(
    ledger_url: LedgerUrl,
    store_url: options.StoreUrl,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    health: options.HealthAddress = "127.0.0.1:0",
    debug: options.Debug = False,
) -> None:
    """Answer the OpenAI batch API. Reading files and running rows is `control` and `worker`.

    Needs GRISTMILL_KEY_PEPPER, the same in all its processes. Several are harmless, and any may
    be killed at any moment.
    """
    with failures_reported(debug=debug):
        _serve(ledger_url, store_url, host=host, port=port, health=health, debug=debug)


def _serve(
    ledger_url: str, store_url: str, *, host: str, port: int, health: str, debug: bool
) -> None:
    import logging
    import time

    from gristmill.cli.needs import server_needed
    from gristmill.cli.settings_from import settings_from
    from gristmill.metrics import Process
    from gristmill.process.health import Health
    from gristmill.process.logs import log_to_stderr
    from gristmill.process.signals import StopSignals
    from gristmill.process.telemetry import ProcessTelemetry

    settings = settings_from()
    log_to_stderr(debug=debug, log_format=settings.log_format)
    telemetry = ProcessTelemetry("api", Process.API, health=health)
    with server_needed():
        from gristmill.api.access import Access
        from gristmill.api.app import create_app
        from gristmill.api.context import Api
        from gristmill.api.server import HttpServer
        from gristmill.cli.ledger_door import pepper_of
        from gristmill.control.webhook_vault import Vault, seal_all
        from gristmill.ledger.open import open_ledger
        from gristmill.prices import read_prices
        from gristmill.stores.open import open_store
    pepper = pepper_of(settings)
    store = open_store(store_url)
    store.probe()
    ledger = open_ledger(ledger_url)
    seal_all(ledger, Vault.of(settings))
    signals = StopSignals(grace_s=settings.drain_grace_s, at_once_code=ExitCode.OK)

    def read_health() -> Health:
        is_stopping = signals.stop.is_set()
        return Health(
            live=True, ready=not is_stopping, state="draining" if is_stopping else "running"
        )

    app = create_app(
        Api(
            ledger=ledger,
            store=store,
            settings=settings,
            clock=time.time,
            access=Access(ledger, pepper=pepper),
            read_health=read_health,
            prices=read_prices(settings.prices),
            telemetry=telemetry.telemetry,
        )
    )
    server = HttpServer(app, host=host, port=port)
    with signals, telemetry.told(read_health), server:
        signals.hold()
        logging.getLogger(__name__).info("api ready url=%s/v1", server.url)
        while server.is_alive and not signals.stop.wait(0.2):
            pass
    ledger.close()
    if not signals.stop.is_set():
        typer.echo("Error: the API has ended by itself; the log above says why.", err=True)
        raise typer.Exit(ExitCode.ERROR)
