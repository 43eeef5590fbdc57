"""The command line `gristmill-worker`: what one does with a model on the machine that computes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app", "main"]

app = typer.Typer(
    name="gristmill-worker",
    help="The compute side of Gristmill.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _gristmill_worker() -> None:
    # A callback keeps `check-model` a command of its own while it is the only one.
    return


@app.command()
def check_model(
    path: Annotated[
        Path, typer.Argument(help="Folder of the model: config.json and *.safetensors.")
    ],
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 or float16, as the worker would load it.")
    ] = "float32",
) -> None:
    """Compare a model in the engine with the same model alone in transformers.

    Exit status 0: exact. 1: refused, or not exact.
    """
    from transformers.utils import logging as transformers_logging

    from gristmill.errors import GristmillError
    from gristmill.settings import Settings
    from gristmill_worker.check import check_model as check

    if not (path / "config.json").is_file():
        typer.echo(f"{path} holds no config.json, so it is not the folder of a model.", err=True)
        raise typer.Exit(1)
    if dtype not in ("float32", "bfloat16", "float16"):
        raise typer.BadParameter(f"{dtype!r} is none of float32, bfloat16, float16.")
    transformers_logging.disable_progress_bar()
    try:
        report = check(path, cache_dir=Settings().cache_dir, dtype=dtype)
    except GristmillError as refusal:
        typer.echo(f"verdict          refused\nreason           {refusal}")
        raise typer.Exit(1) from None
    for line in report.lines():
        typer.echo(line)
    raise typer.Exit(0 if report.is_exact else 1)


def main() -> None:
    """Run the command line; the console script of the distribution."""
    app()
