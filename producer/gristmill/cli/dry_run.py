"""`gristmill run --dry-run`: checks every line and counts tokens exactly. Runs nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from gristmill.cli.failures import ExitCode
from gristmill.cli.progress import progress_view
from gristmill.cli.throughput import ThroughputLog
from gristmill.errors import BatchInvalid
from gristmill.local import Progress, RunConfig
from gristmill.values import counted, format_duration

if TYPE_CHECKING:
    from gristmill.requests.check import CheckReport, RefusedGroup


def dry_run(config: RunConfig, *, as_json: bool, quiet: bool, show_progress: bool) -> ExitCode:
    """Print what a run of this input would do. Raises BatchInvalid and what find_model raises."""
    try:
        report = _check(config, show_progress=show_progress)
    except BatchInvalid as invalid:
        if as_json:
            errors = [asdict(error) for error in invalid.errors]
            _print_document(
                {"status": "failed", "errors": errors, "num_errors": invalid.num_errors}
            )
        raise
    speed = ThroughputLog(config.settings.cache_dir).tokens_per_s(config.model_name)
    if as_json:
        num_tokens = report.max_output_tokens
        estimated_s = num_tokens / speed if speed and num_tokens else None
        _print_document(
            {"status": "valid", **asdict(report), "tokens_per_s": speed, "estimated_s": estimated_s}
        )
    elif not quiet:
        typer.echo(report_text(report, tokens_per_s=speed))
    return ExitCode.ROWS_FAILED if report.num_refused else ExitCode.OK


def _check(config: RunConfig, *, show_progress: bool) -> CheckReport:
    from gristmill.local_model import find_catalogue
    from gristmill.requests.check import check
    from gristmill.requests.first_model import first_model_name

    num_bytes = config.input_path.stat().st_size
    with (
        progress_view(sys.stderr, wanted=show_progress) as view,
        config.input_path.open("rb") as source,
    ):
        catalogue = find_catalogue(
            *([config.model_name], config.adapters),
            # What it would run on says nothing about its lines, and takes seconds to find out.
            settings=config.settings.model_copy(update={"device": "cpu"}),
            revision=config.revision,
            served_names=config.served_names,
        )
        name = first_model_name(source, max_bytes=config.settings.max_line_bytes)
        source.seek(0)
        return check(
            source,
            model=catalogue.asked_for(name),
            settings=config.settings,
            on_progress=lambda report: view.update(_reading(report.input_bytes, num_bytes)),
        )


def _reading(bytes_read: int, bytes_total: int) -> Progress:
    return Progress(
        phase="reading",
        total=0,
        completed=0,
        failed=0,
        generated_tokens=0,
        tokens_per_s=0.0,
        eta_s=None,
        bytes_read=bytes_read,
        bytes_total=bytes_total,
    )


def report_text(report: CheckReport, *, tokens_per_s: float | None) -> str:
    """The report for people, one fact a line."""
    return "\n".join(f"{label:<10} {value}" for label, value in _facts(report, tokens_per_s))


def _facts(report: CheckReport, tokens_per_s: float | None) -> Iterator[tuple[str, str]]:
    yield (
        "rows",
        f"{report.num_rows:,}: {report.num_rows - report.num_refused:,} would run, "
        f"{report.num_refused:,} would be refused",
    )
    yield "merged", f"{counted(report.num_merged, 'row')} would share the work of an identical one"
    yield (
        "tokens",
        f"{report.prompt_tokens:,} prompt (the longest {report.longest_prompt:,}), "
        f"at most {report.max_output_tokens:,} to generate",
    )
    if report.num_with_grammar or report.num_with_tools:
        yield (
            "forms",
            f"{counted(report.num_with_grammar, 'row')} with a grammar, "
            f"{report.num_with_tools:,} with tools",
        )
    yield "time", _estimate(report.max_output_tokens, tokens_per_s)
    for group in report.refused:
        param = f" {group.param}" if group.param else ""
        yield (
            "refused",
            f"{counted(group.num_rows, 'row')}: {group.code}{param}, {_where(group)}: "
            f"{group.message}",
        )


def _where(group: RefusedGroup) -> str:
    """By line where each row has to be mended by itself."""
    if group.code != "invalid_grammar" or len(group.lines) < 2:
        return f"first in line {group.first_line}"
    more = ", \u2026" if group.num_rows > len(group.lines) else ""
    return f"in lines {', '.join(map(str, group.lines))}{more}"


def _estimate(max_output_tokens: int, tokens_per_s: float | None) -> str:
    if not max_output_tokens:
        return "no estimate: nothing is generated, and only generated tokens are measured"
    if tokens_per_s is None:
        return "no estimate: no longer run of this model on this machine has been measured yet"
    return (
        f"at most about {format_duration(max_output_tokens / tokens_per_s)}, at the "
        f"{tokens_per_s:,.1f} generated tokens/s of the last run of this model on this machine"
    )


def _print_document(document: dict[str, object]) -> None:
    typer.echo(json.dumps(document, ensure_ascii=False))
