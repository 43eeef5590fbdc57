"""The command line `gristmill`: one file per command, and what the commands share.

Nothing heavy is imported here; a command imports what it needs when it is called, so that
`gristmill --help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.cli import keys, ledger, tenants
from gristmill.cli.api import api
from gristmill.cli.client_commands import add_client_commands
from gristmill.cli.control import control
from gristmill.cli.replay import replay
from gristmill.cli.run import run
from gristmill.cli.score import score
from gristmill.cli.simulate import simulate
from gristmill.cli.up import up
from gristmill.cli.worker import worker

__all__ = ["app", "main"]

app = typer.Typer(
    name="gristmill",
    help="Very large batches of LLM requests on machines you own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(up)
app.command()(worker)
app.command()(control)
app.command()(api)
app.add_typer(keys.app, name="keys")
app.add_typer(tenants.app, name="tenants")
app.add_typer(ledger.app, name="ledger")
app.command()(replay)
add_client_commands(app)
app.command()(score)
app.command()(simulate)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import version

    typer.echo(f"gristmill {version('gristmill')}")
    raise typer.Exit()


@app.callback()
def _gristmill(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    verbose: Annotated[
        int, typer.Option("-v", count=True, help="Tell what is tried again; -vv more.")
    ] = 0,
) -> None:
    if verbose:
        from gristmill.client.setup import log_at

        log_at("INFO" if verbose == 1 else "DEBUG")
    # A callback keeps `run` a command of its own while it is the only one.
    del version


def main() -> None:
    """Run the command line; the console script of the distribution."""
    app()
