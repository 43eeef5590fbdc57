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
    from gristmill_worker.check_encoder import check_encoder
    from gristmill_worker.equip import is_encoder

    _check_folder_and_dtype(path, dtype)
    transformers_logging.disable_progress_bar()
    check_it = check_encoder if is_encoder(path) else check
    try:
        report = check_it(path, cache_dir=Settings().cache_dir, dtype=dtype)
    except GristmillError as refusal:
        typer.echo(f"verdict          refused\nreason           {refusal}")
        raise typer.Exit(1) from None
    for line in report.lines():
        typer.echo(line)
    raise typer.Exit(0 if report.is_exact else 1)


@app.command()
def bench(
    path: Annotated[
        Path, typer.Argument(help="Folder of the model: config.json and *.safetensors.")
    ],
    rows: Annotated[str, typer.Option(help="Rows at once, with commas between.")] = "1,4,16,64,256",
    prompts: Annotated[
        str, typer.Option(help="Tokens of each prompt, with commas between.")
    ] = "32,128,512,2048",
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens that each row decodes.")] = 16,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 or float16, as the worker would load it.")
    ] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
) -> None:
    """Measure prefill and decode on this machine, over a ladder of rows and prompt lengths."""
    from transformers.utils import logging as transformers_logging

    from gristmill.errors import GristmillError
    from gristmill.settings import Settings
    from gristmill_worker.bench import climb, table
    from gristmill_worker.models.loader import load_model

    _check_folder_and_dtype(path, dtype)
    row_counts, lengths = _numbers(rows, "--rows"), _numbers(prompts, "--prompts")
    transformers_logging.disable_progress_bar()
    cache_dir = Settings().cache_dir
    try:
        loaded = load_model(path, dtype=dtype, device=device, cache_dir=cache_dir)
        rungs = climb(
            loaded,
            cache_dir=cache_dir,
            rows=row_counts,
            prompt_tokens=lengths,
            new_tokens=new_tokens,
        )
        for line in table(rungs):
            typer.echo(line)
    except GristmillError as refusal:
        typer.echo(str(refusal), err=True)
        raise typer.Exit(1) from None


def _check_folder_and_dtype(path: Path, dtype: str) -> None:
    if not (path / "config.json").is_file():
        typer.echo(f"{path} holds no config.json, so it is not the folder of a model.", err=True)
        raise typer.Exit(1)
    if dtype not in ("float32", "bfloat16", "float16"):
        raise typer.BadParameter(f"{dtype!r} is none of float32, bfloat16, float16.")


def _numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{option} takes whole numbers from 1 like 1,16,64, not {text!r}.")
    return numbers


def main() -> None:
    """Run the command line; the console script of the distribution."""
    app()
