"""`gristmill control`: dispatches, accepts, ends batches and repairs, for all of a Ledger."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import ExitCode, failures_reported
from gristmill.cli.needs import server_needed

if TYPE_CHECKING:
    import threading

    from gristmill.control.base import Control
    from gristmill.process.control import ControlProcess
    from gristmill.process.telemetry import ProcessTelemetry
    from gristmill.settings import Settings
    from gristmill.telemetry import Telemetry

LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger",
        metavar="URL",
        envvar="GRISTMILL_LEDGER",
        help="A file of SQLite, or postgresql://user@host/database.",
    ),
]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="URL",
        envvar="GRISTMILL_BROKER",
        help="Work as tasks of Celery, through redis://HOST:6379/1 or sqs://PREFIX.",
    ),
]


class Webhooks(StrEnum):
    SEND = "send"
    LEAVE = "leave"
    ONLY = "only"


WebhooksShare = Annotated[
    Webhooks,
    typer.Option(
        "--webhooks",
        help="Send them, leave them to other processes, or do nothing else: for a machine of "
        "their own, the only one with a way out.",
    ),
]


def control(
    ledger_url: LedgerUrl,
    queue_url: options.QueueUrl,
    store_url: options.StoreUrl,
    broker_url: BrokerUrl = None,
    webhooks: WebhooksShare = Webhooks.SEND,
    health: options.HealthAddress = "127.0.0.1:0",
    models: options.Models = None,
    adapters: options.Adapters = None,
    debug: options.Debug = False,
) -> None:
    """Keep every batch of a ledger moving: send Shards, accept results, end what is complete.

    With --model it also reads the uploaded files of batches for that model; its revision and
    GRISTMILL_DTYPE must be those of the workers. Several processes on one ledger are harmless,
    and any may be killed at any moment. With --broker they share all work between them, slice by
    slice; without, each does all of it in turn, which is enough for one process.
    """
    with failures_reported(debug=debug):
        settings = _settings(debug=debug)
        telemetry = _telemetry(health)
        process = _connect(
            settings,
            telemetry.telemetry,
            *(ledger_url, queue_url, store_url, broker_url),
            models=models or [],
            adapters=adapters or [],
            webhooks=webhooks,
        )
        _serve(process, telemetry)


def _settings(*, debug: bool) -> Settings:
    from gristmill.cli.settings_from import settings_from
    from gristmill.process.logs import log_to_stderr

    settings = settings_from()
    log_to_stderr(debug=debug, log_format=settings.log_format)
    return settings


def _telemetry(health: str) -> ProcessTelemetry:
    from gristmill.metrics import Process
    from gristmill.process.telemetry import ProcessTelemetry

    return ProcessTelemetry("control", Process.CONTROL, health=health)


def _connect(
    settings: Settings,
    telemetry: Telemetry,
    ledger_url: str,
    queue_url: str,
    store_url: str,
    broker_url: str | None,
    *,
    models: list[str],
    adapters: list[str],
    webhooks: Webhooks,
) -> ControlProcess:
    import logging
    import time

    with server_needed():
        from gristmill.control.base import Control
        from gristmill.control.gauges import LedgerGauges
        from gristmill.ledger.open import open_ledger
        from gristmill.local_model import find_catalogue
        from gristmill.prices import read_prices
        from gristmill.process.connect import connect
        from gristmill.process.control import LoopedControl, WebhookControl
    if broker_url is not None:
        with server_needed():
            from gristmill.control.broker import parse_broker_url
            from gristmill.process.celery import CeleryControl
        broker = parse_broker_url(broker_url, queue_url=queue_url)
    ledger = open_ledger(ledger_url)
    queue, store = connect(queue_url, store_url, settings)
    prices = read_prices(settings.prices)
    control = Control(
        *(ledger, store, queue, time.time, settings), prices=prices, telemetry=telemetry
    )
    telemetry.metrics.on_look(LedgerGauges(control, telemetry.metrics).put)
    if not control.vault.has_key:
        logging.getLogger(__name__).warning(
            "webhooks wait reason=their secrets are sealed; set GRISTMILL_KEY_PEPPER as for the API"
        )
    if webhooks is Webhooks.ONLY:
        return WebhookControl(control)
    sends_webhooks = webhooks is Webhooks.SEND
    catalogue = list(find_catalogue(models, adapters, settings=settings).models)
    if broker_url is None:
        return LoopedControl(control, catalogue, sends_webhooks=sends_webhooks)
    return CeleryControl(control, catalogue, broker, sends_webhooks=sends_webhooks)


def _serve(process: ControlProcess, telemetry: ProcessTelemetry) -> None:
    from gristmill.process.garbage import look_for_garbage_seldom
    from gristmill.process.health import Health
    from gristmill.process.signals import StopSignals

    settings = process.control.settings
    signals = StopSignals(grace_s=settings.drain_grace_s, at_once_code=ExitCode.OK)

    def read_health() -> Health:
        is_stopping = signals.stop.is_set()
        troubles = process.troubles
        return Health(
            live=True,
            ready=not (is_stopping or troubles),
            state="draining" if is_stopping else "running",
            troubles=troubles,
        )

    with signals, telemetry.told(read_health), _cloudwatch_told(process.control, signals.stop):
        signals.hold()
        look_for_garbage_seldom()
        process.run(signals.stop)
    process.control.queue.close()
    process.control.ledger.close()


def _cloudwatch_told(control: Control, stop: threading.Event) -> AbstractContextManager[None]:
    """Publishes what the Ledger knows, where a namespace is set."""
    from gristmill.control.gauges import LedgerGauges
    from gristmill.metrics import Process
    from gristmill.telemetry import Tally

    namespace = control.settings.cloudwatch_namespace
    if namespace is None:
        return nullcontext()
    with server_needed():
        from gristmill.process.cloudwatch import cloudwatch_told
    tally = Tally(Process.CONTROL)
    tally.on_look(LedgerGauges(control, tally).put)
    return cloudwatch_told(namespace, tally.look, stop=stop)
