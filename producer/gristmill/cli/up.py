"""`gristmill up`: the whole service on this machine, from one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import ExitCode, failures_reported
from gristmill.cli.progress import keep_stderr_ours

if TYPE_CHECKING:
    from gristmill.settings import Settings

_DATA_HELP = "Ledger, files and results. A service that is started again goes on from here."

DataDir = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help=_DATA_HELP)]


def up(
    model: options.Model,
    data_dir: DataDir = Path("gristmill-data"),
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    adapters: options.Adapters = None,
    revision: options.Revision = None,
    served_model_names: options.ServedModelNames = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_model_len: options.MaxModelLen = None,
    flush_interval: options.FlushInterval = None,
    health: options.HealthAddress = "127.0.0.1:0",
    debug: options.Debug = False,
) -> None:
    """Serve a model through the OpenAI batch API: API, control side and worker in one process.

    The first start prints an API key and an example. Ctrl-C keeps all work; the same command goes
    on with it.
    """
    from gristmill.cli.settings_from import settings_from

    with failures_reported(debug=debug):
        settings = settings_from(
            max_num_seqs=max_num_seqs, max_model_len=max_model_len, flush_interval=flush_interval
        )
        _serve(
            settings,
            model_name=model,
            adapters=adapters or [],
            revision=revision,
            served_names=tuple(served_model_names or ()),
            data_dir=data_dir,
            host=host,
            port=port,
            health=health,
            debug=debug,
        )


def _serve(
    settings: Settings,
    *,
    model_name: str,
    adapters: list[str],
    revision: str | None,
    served_names: tuple[str, ...],
    data_dir: Path,
    host: str,
    port: int,
    health: str,
    debug: bool,
) -> None:
    from gristmill.cli.needs import server_needed
    from gristmill.metrics import Process
    from gristmill.process.logs import log_to_stderr
    from gristmill.process.signals import StopSignals
    from gristmill.process.telemetry import ProcessTelemetry

    log_to_stderr(debug=debug, log_format=settings.log_format)
    keep_stderr_ours()
    telemetry = ProcessTelemetry("up", *Process, health=health)
    signals = StopSignals(grace_s=settings.drain_grace_s, at_once_code=ExitCode.UNSAVED)
    with server_needed():
        from gristmill.cli.welcome import welcome
        from gristmill.compute import find_worker
        from gristmill.local.data_folder import DataFolder
        from gristmill.local.service import Service
        from gristmill.local_model import find_catalogue
    with signals, DataFolder(data_dir) as folder:
        build_worker = find_worker()
        catalogue = find_catalogue(
            *([model_name], adapters),
            settings=settings,
            revision=revision,
            served_names=served_names,
        )
        model = catalogue.base
        service = Service(
            *(folder, settings, catalogue),
            host=host,
            port=port,
            telemetry=telemetry.telemetry,
        )
        telemetry.tell_worker(
            model.name,
            service.health,
            price_per_hour=settings.machine_price_per_hour,
            currency=service.control.prices.currency,
        )
        key = service.make_first_key()
        typer.echo(welcome(service.url, model, key))
        signals.hold()
        with telemetry.told(service.health):
            service.serve(
                signals.stop,
                build_worker,
                on_ready=lambda text: typer.echo(f"The model is loaded: {text}", err=True),
            )
        typer.echo("Stopped. All work is kept; the same command goes on with it.", err=True)
