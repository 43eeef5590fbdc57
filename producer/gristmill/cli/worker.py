"""`gristmill worker`: one model, one queue, one store, for as long as it is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import ExitCode, failures_reported
from gristmill.cli.progress import keep_stderr_ours

if TYPE_CHECKING:
    from gristmill.compute import ComputeWorker
    from gristmill.settings import Settings

_IDLE_HELP = "End with 0 when there has been nothing to do for so long, as 30s: scale to zero."
_GRACE_HELP = "After SIGTERM, so long to save what is under way, as 30s."

_LANES_HELP = (
    "The lanes to listen to, the first one first, with commas between; `pool` is that of workers "
    "with the same abilities. Default: pool,bulk."
)

Lanes = Annotated[str | None, typer.Option("--lanes", metavar="LANES", help=_LANES_HELP)]
DrainAndExit = Annotated[
    bool,
    typer.Option("--drain-and-exit", help="End with 0 when the queue has nothing left to do."),
]
IdleExit = Annotated[str | None, typer.Option("--idle-exit", metavar="TIME", help=_IDLE_HELP)]
Grace = Annotated[str | None, typer.Option("--grace", metavar="TIME", help=_GRACE_HELP)]

#: What `--drain-and-exit` waits for a Shard that another worker is about to give back.
_DRAINED_S = 2.0


def worker(
    queue_url: options.QueueUrl,
    store_url: options.StoreUrl,
    model: options.Model,
    adapters: options.Adapters = None,
    revision: options.Revision = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_model_len: options.MaxModelLen = None,
    flush_interval: options.FlushInterval = None,
    lanes: Lanes = None,
    grace: Grace = None,
    drain_and_exit: DrainAndExit = False,
    idle_exit: IdleExit = None,
    health: options.HealthAddress = "127.0.0.1:0",
    debug: options.Debug = False,
) -> None:
    """Answer the rows of every batch on a queue that was made for this model.

    It may be killed at any moment: what it had is taken over by another worker, or by its next
    start. SIGTERM saves everything first.
    """
    from gristmill.cli.settings_from import settings_from
    from gristmill.values import parse_duration

    with failures_reported(debug=debug):
        settings = settings_from(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            flush_interval=flush_interval,
            lanes=lanes,
            drain_grace_s=None if grace is None else parse_duration(grace),
        )
        idle_exit_s = _DRAINED_S if drain_and_exit else None
        if idle_exit is not None:
            idle_exit_s = parse_duration(idle_exit)
        exit_code = _serve(
            settings,
            queue_url=queue_url,
            store_url=store_url,
            model_name=model,
            adapters=adapters or [],
            revision=revision,
            idle_exit_s=idle_exit_s,
            health=health,
            debug=debug,
        )
    raise typer.Exit(exit_code)


def _serve(
    settings: Settings,
    *,
    queue_url: str,
    store_url: str,
    model_name: str,
    adapters: list[str],
    revision: str | None,
    idle_exit_s: float | None,
    health: str,
    debug: bool,
) -> ExitCode:
    from gristmill.metrics import Process
    from gristmill.prices import read_prices
    from gristmill.process.logs import log_to_stderr
    from gristmill.process.signals import StopSignals
    from gristmill.process.spot_notice import spot_watched
    from gristmill.process.telemetry import ProcessTelemetry
    from gristmill.process.worker import WorkerProcess

    log_to_stderr(debug=debug, log_format=settings.log_format)
    keep_stderr_ours()
    telemetry = ProcessTelemetry("worker", Process.WORKER, health=health)
    currency = read_prices(settings.prices).currency

    def build() -> ComputeWorker:
        from gristmill.compute import find_worker, worker_config
        from gristmill.local_model import find_catalogue
        from gristmill.process.connect import connect

        queue, store = connect(queue_url, store_url, settings)
        found = find_catalogue([model_name], adapters, settings=settings, revision=revision)
        model = found.base
        telemetry.tell_worker(
            model.name,
            process.health,
            price_per_hour=settings.machine_price_per_hour,
            currency=currency,
        )
        config = worker_config(
            settings,
            model_path=model.path,
            pin=model.pin,
            max_model_len=model.max_model_len,
            device=found.device,
            adapters=found.adapters,
            patience_s=settings.outage_patience_s,
            exit_when_idle_s=idle_exit_s,
        )
        worker = find_worker()(config, queue, store)
        worker.watch(telemetry.telemetry)
        return worker

    signals = StopSignals(grace_s=settings.drain_grace_s, at_once_code=ExitCode.UNSAVED)
    process = WorkerProcess(signals)
    with (
        signals,
        spot_watched(settings, signals),
        telemetry.told(process.health),
    ):
        return process.serve(build)
