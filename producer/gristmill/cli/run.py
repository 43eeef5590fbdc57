"""`gristmill run`: reads the arguments, calls `local.run` or the dry run, shows the outcome."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gristmill.cli import options
from gristmill.cli.failures import ExitCode, failures_reported, print_line_errors
from gristmill.cli.progress import keep_stderr_ours, progress_view
from gristmill.cli.settings_from import settings_from
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.local import Fleet, RunConfig, Summary
    from gristmill.settings import Settings


def run(
    input_path: options.InputPath,
    output_path: options.OutputPath,
    model: options.Model,
    errors_path: options.ErrorsPath = None,
    work_dir: options.WorkDir = None,
    keep_work: options.KeepWork = False,
    dry_run: options.DryRun = False,
    adapters: options.Adapters = None,
    revision: options.Revision = None,
    served_model_names: options.ServedModelNames = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_model_len: options.MaxModelLen = None,
    flush_interval: options.FlushInterval = None,
    queue_url: options.RunQueueUrl = None,
    store_url: options.RunStoreUrl = None,
    json_summary: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
    debug: options.Debug = False,
) -> None:
    """Answer every line of IN.jsonl with a model, on this machine, into OUT.jsonl.

    A run that was interrupted goes on where it stopped when the same command is started again.
    With --queue and --store the rows are answered by `gristmill worker` processes.
    """
    with failures_reported(debug=debug):
        settings = settings_from(
            max_num_seqs=max_num_seqs, max_model_len=max_model_len, flush_interval=flush_interval
        )
        config = _config(
            input_path,
            output_path,
            errors_path=errors_path,
            work_dir=work_dir,
            model_name=model,
            adapters=tuple(adapters or ()),
            revision=revision,
            served_names=tuple(served_model_names or ()),
            settings=settings,
            keep_work=keep_work,
            fleet=_fleet(queue_url, store_url),
        )
        show_progress = not (quiet or no_progress)
        keep_stderr_ours()
        if dry_run:
            from gristmill.cli.dry_run import dry_run as check_only

            exit_code = check_only(
                config, as_json=json_summary, quiet=quiet, show_progress=show_progress
            )
        else:
            summary = _answer(config, show_progress=show_progress)
            exit_code = _report(config, summary, as_json=json_summary, quiet=quiet)
    raise typer.Exit(exit_code)


def _config(
    input_path: Path,
    output_path: Path,
    *,
    errors_path: Path | None,
    work_dir: Path | None,
    model_name: str,
    adapters: tuple[str, ...],
    revision: str | None,
    served_names: tuple[str, ...],
    settings: Settings,
    keep_work: bool,
    fleet: Fleet | None,
) -> RunConfig:
    from gristmill.local import RunConfig

    if str(input_path) == "-" or (input_path.exists() and not input_path.is_file()):
        raise UsageError(
            f"The input {str(input_path)!r} is not a regular file. A pipe or a folder cannot be "
            "read again after an interruption: write the requests to a file first."
        )
    if not input_path.exists():
        raise UsageError(f"There is no input file {str(input_path)!r}.")
    errors_path = errors_path or output_path.with_name(f"{output_path.stem}.errors.jsonl")
    work_dir = work_dir or output_path.with_name(f"{output_path.name}.work")
    _refuse_unwritable(input_path, output_path, errors_path)
    return RunConfig(
        input_path=input_path,
        output_path=output_path,
        errors_path=errors_path,
        work_dir=work_dir,
        model_name=model_name,
        adapters=adapters,
        revision=revision,
        served_names=served_names,
        settings=settings,
        keep_work=keep_work,
        fleet=fleet,
    )


def _fleet(queue_url: str | None, store_url: str | None) -> Fleet | None:
    from gristmill.local import Fleet

    if queue_url is None and store_url is None:
        return None
    if queue_url is None or store_url is None:
        raise UsageError(
            "Workers of their own need both --queue and --store. Without either, this process "
            "answers the rows itself."
        )
    return Fleet(queue_url, store_url)


def _refuse_unwritable(input_path: Path, output_path: Path, errors_path: Path) -> None:
    for path in (output_path, errors_path):
        if not path.parent.is_dir():
            raise UsageError(
                f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}. "
                "Create it, or name another place."
            )
        if str(path) == "-" or (path.exists() and not path.is_file()):
            raise UsageError(f"{str(path)!r} is not a regular file; name a file for the results.")
    if len({path.resolve() for path in (input_path, output_path, errors_path)}) < 3:
        raise UsageError(
            f"The input {str(input_path)!r}, the answers {str(output_path)!r} and the errors "
            f"{str(errors_path)!r} must be three different files."
        )


def _answer(config: RunConfig, *, show_progress: bool) -> Summary:
    from gristmill import local
    from gristmill.cli.interrupt import StopOnSignal

    with StopOnSignal() as stop, progress_view(sys.stderr, wanted=show_progress) as view:
        return local.run(config, on_progress=view.update, should_stop=stop.requested)


def _report(config: RunConfig, summary: Summary, *, as_json: bool, quiet: bool) -> ExitCode:
    from gristmill.cli.summary import exit_code_of, summary_document, summary_text
    from gristmill.cli.throughput import ThroughputLog

    if as_json:
        typer.echo(json.dumps(summary_document(summary), ensure_ascii=False))
    elif summary.status != "failed" and not quiet:
        typer.echo(summary_text(summary))
    if summary.status == "failed":
        print_line_errors(summary.errors, summary.num_errors)
    elif summary.status == "interrupted":
        typer.echo(
            f"Interrupted. What is done is kept in {config.work_dir}. "
            "To go on, run the same command again.",
            err=True,
        )
    else:
        ThroughputLog(config.settings.cache_dir).record(
            config.model_name,
            generated_tokens=summary.generated_tokens,
            tokens_per_s=summary.tokens_per_s,
        )
    return exit_code_of(summary)
