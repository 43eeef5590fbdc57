"""`gristmill replay`: answers one row of a result file again and shows where it differs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import ExitCode, failures_reported
from gristmill.cli.progress import keep_stderr_ours

if TYPE_CHECKING:
    from gristmill.local.differences import Difference
    from gristmill.local.replay import ReplayReport

_ID_HELP = "The custom_id of the row."
_INPUT_HELP = "The file of requests that the answers belong to; an answer holds no prompt."
_MODEL_HELP = "As for `gristmill run`. Default: the name in the request."
_JSON_HELP = "Print what was found as one JSON document."

ResultPath = Annotated[Path, typer.Argument(metavar="RESULT.jsonl", help="The answers of a run.")]
CustomId = Annotated[str, typer.Option("--id", metavar="CUSTOM_ID", help=_ID_HELP)]
InputPath = Annotated[Path, typer.Option("--input", metavar="IN.jsonl", help=_INPUT_HELP)]
Model = Annotated[str | None, typer.Option("--model", metavar="MODEL", help=_MODEL_HELP)]
Json = Annotated[bool, typer.Option("--json", help=_JSON_HELP)]


def replay(
    result_path: ResultPath,
    custom_id: CustomId,
    input_path: InputPath,
    model: Model = None,
    adapters: options.Adapters = None,
    revision: options.Revision = None,
    as_json: Json = False,
    debug: options.Debug = False,
) -> None:
    """Answer one row again, alone, and show where it differs from what RESULT.jsonl has.

    Exit status 0: the same, to the last digit. 6: it differs.
    """
    with failures_reported(debug=debug):
        keep_stderr_ours()
        from gristmill.local.replay import replay as run_again
        from gristmill.settings import Settings

        report = run_again(
            result_path,
            input_path,
            custom_id,
            model_name=model,
            revision=revision,
            settings=Settings(),
            adapters=tuple(adapters or ()),
        )
        if as_json:
            typer.echo(json.dumps({"is_same": report.is_same, **asdict(report)}))
        else:
            for line in _warnings(report):
                typer.echo(f"Warning: {line}", err=True)
            for line in _findings(report):
                typer.echo(line)
    raise typer.Exit(ExitCode.OK if report.is_same else ExitCode.DIFFERS)


def _warnings(report: ReplayReport) -> Iterator[str]:
    for changed in report.changed:
        yield (
            f"another {changed.what}: the row was computed with {changed.then or 'an unknown one'},"
            f" now it is {changed.now or 'none'}"
        )


def _findings(report: ReplayReport) -> Iterator[str]:
    if report.is_same:
        yield f"same       {report.custom_id}: {report.num_compared:,} values, to the last digit"
        return
    yield f"differs    {report.custom_id}"
    for difference in report.differences:
        yield f"           {_place(difference)}: was {difference.then!r}, is {difference.now!r}"


def _place(difference: Difference) -> str:
    if difference.token is None:
        return difference.path
    return f"token {difference.token} ({difference.path})"
