"""`gristmill score`: reads the arguments, calls `score.score`, shows the figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gristmill.cli import options, score_options
from gristmill.cli.failures import ExitCode, failures_reported
from gristmill.cli.progress import keep_stderr_ours, progress_view
from gristmill.cli.service import Profile
from gristmill.cli.settings_from import settings_from
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.cli.interrupt import StopOnSignal
    from gristmill.cli.progress import ProgressView
    from gristmill.score import Report, Task
    from gristmill.scores.answer import Answerer
    from gristmill.settings import Settings


def score(
    data: score_options.Data,
    output: score_options.Output,
    model: options.Model,
    task: score_options.TaskName,
    prompt: score_options.PromptText = None,
    system: score_options.SystemText = None,
    chat: score_options.IsChat = None,
    target: score_options.Target = None,
    choice: score_options.ChoiceTexts = None,
    choices_column: score_options.ChoicesColumn = None,
    normalize: score_options.Normalize = score_options.RuleName.sum,
    text: score_options.RolledText = None,
    window: score_options.Window = None,
    stride: score_options.Stride = None,
    answers: score_options.Answers = None,
    reason: score_options.ReasonChars = 0,
    gold: score_options.GoldColumn = None,
    truncate: score_options.Truncate = False,
    id_column: score_options.IdColumn = None,
    limit: score_options.Limit = None,
    bootstrap: score_options.Bootstrap = 1000,
    seed: score_options.Seed = 0,
    base_url: score_options.BaseUrl = None,
    profile: Profile = None,
    work_dir: options.WorkDir = None,
    revision: options.Revision = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_model_len: options.MaxModelLen = None,
    json_summary: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
    debug: options.Debug = False,
) -> None:
    """Score every row of a data set, on this machine or by a service (--base-url, --profile).

    Writes the rows with their scores, and a report as Markdown and HTML beside them. A call that
    was interrupted goes on where it stopped when it is started again.
    """
    with failures_reported(debug=debug), interruption_reported():
        keep_stderr_ours()
        asked = score_options.task_of(
            task,
            prompt=prompt,
            system=system,
            chat=chat,
            target=target,
            choices=choice or [],
            choices_column=choices_column,
            rule=normalize,
            text=text,
            window=window,
            stride=stride,
            answers=answers,
            reason_chars=reason,
            gold=gold,
            truncate=truncate,
        )
        settings = settings_from(max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        from gristmill.cli.interrupt import StopOnSignal

        shown = not (quiet or no_progress)
        with StopOnSignal() as stop, progress_view(sys.stderr, wanted=shown) as view:
            answerer = _answerer(
                model, revision, settings, base_url=base_url, profile=profile, view=view, stop=stop
            )
            report = _score(
                data,
                asked,
                answerer,
                output=output,
                id_column=id_column,
                limit=limit,
                num_resamples=bootstrap,
                seed=seed,
                work_dir=work_dir,
            )
        _show(report, output, as_json=json_summary, quiet=quiet)
    raise typer.Exit(ExitCode.ROWS_FAILED if report.num_failed else ExitCode.OK)


@contextmanager
def interruption_reported() -> Iterator[None]:
    """To be stopped is no error."""
    from gristmill.scores.answer import Interrupted

    try:
        yield
    except Interrupted as interrupted:
        typer.echo(str(interrupted), err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from interrupted


def _answerer(
    model: str,
    revision: str | None,
    settings: Settings,
    *,
    base_url: str | None,
    profile: str | None,
    view: ProgressView,
    stop: StopOnSignal,
) -> Answerer:
    if base_url is None and profile is None:
        from gristmill.scores.answer import Embedded

        return Embedded(model, revision, settings, view.update, stop.requested)
    if revision is not None:
        raise UsageError("A service has its own revision of a model: leave --revision out.")
    from gristmill.client import Client
    from gristmill.scores.remote import Remote

    return Remote(model, Client(base_url=base_url, profile=profile), view.update, stop.requested)


def _score(
    data: str,
    task: Task,
    answerer: Answerer,
    *,
    output: str,
    id_column: str | None,
    limit: int | None,
    num_resamples: int,
    seed: int,
    work_dir: Path | None,
) -> Report:
    from gristmill.score import score as score_data

    return score_data(
        data,
        task,
        answerer,
        output=output,
        id_column=id_column,
        limit=limit,
        num_resamples=num_resamples,
        seed=seed,
        work_dir=work_dir,
    )


def _show(report: Report, output: str, *, as_json: bool, quiet: bool) -> None:
    from gristmill.score import report_files

    files = report_files(output)
    if as_json:
        document = report.document() | {"output": output, "report": files}
        typer.echo(json.dumps(document, ensure_ascii=False))
        return
    if quiet:
        return
    from gristmill.scores.report import number

    done = report.num_rows - report.num_failed
    typer.echo(f"{report.num_rows:,} rows: {done:,} scored, {report.num_failed:,} failed")
    width = max((len(one.name) for one in report.findings.figures), default=0)
    for one in report.findings.figures:
        spread = f"  ({number(one.low)} to {number(one.high)})" if one.low is not None else ""
        typer.echo(f"{one.name:<{width}}  {number(one.value)}{spread}")
    typer.echo(f"rows with scores: {output}")
    typer.echo(f"report:           {files['html']}, {files['markdown'].rpartition('/')[2]}")
