"""The end of a run as text for people and as one JSON document for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.cli.failures import ExitCode
from gristmill.values import counted, format_duration

if TYPE_CHECKING:
    from gristmill.local import Summary

_EXIT_CODES = {
    "failed": ExitCode.BATCH_FAILED,
    "interrupted": ExitCode.INTERRUPTED,
}


def exit_code_of(summary: Summary) -> ExitCode:
    """What the process ends with after this run."""
    if summary.status == "completed":
        return ExitCode.ROWS_FAILED if summary.failed else ExitCode.OK
    return _EXIT_CODES[summary.status]


def summary_document(summary: Summary) -> dict[str, object]:
    """The summary for `--json`: the fields of Summary, paths as strings."""
    document: dict[str, object] = asdict(summary)
    for name, value in document.items():
        if isinstance(value, Path):
            document[name] = str(value)
    return document


def summary_text(summary: Summary) -> str:
    """The summary for people, one fact a line."""
    return "\n".join(f"{label:<10} {value}" for label, value in _facts(summary))


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    unanswered = summary.total - summary.completed - summary.failed
    yield (
        "rows",
        f"{summary.total:,}: {summary.completed:,} answered, {summary.failed:,} failed"
        + (f", {unanswered:,} still to do" if unanswered else ""),
    )
    usage = summary.usage
    yield (
        "tokens",
        f"{usage.prompt_tokens:,} prompt, {usage.completion_tokens:,} generated; "
        f"{summary.cached_fraction:.1%} of the prompt tokens came from the prefix cache",
    )
    yield "this run", _speed(summary)
    if summary.equipment:
        yield "engine", summary.equipment
    if summary.rows_resumed or summary.tokens_resumed:
        yield (
            "resumed",
            f"{counted(summary.rows_resumed, 'row')} and "
            f"{counted(summary.tokens_resumed, 'token')} were already done before this start",
        )
    if summary.ttft_p50_s is not None:
        yield "TTFT", _quantiles(summary.ttft_p50_s, summary.ttft_p95_s)
    if summary.itl_p50_s is not None:
        yield "ITL", _quantiles(summary.itl_p50_s, summary.itl_p95_s)
    if summary.output_path is not None:
        yield "answers", str(summary.output_path)
    if summary.errors_path is not None:
        yield "errors", str(summary.errors_path)


def _speed(summary: Summary) -> str:
    """Scores and embeddings generate nothing, so rows are what counts there."""
    seconds = format_duration(summary.elapsed_s)
    if summary.usage.completion_tokens or not summary.completed:
        speed = f"{summary.tokens_per_s:,.1f} tokens/s"
        return f"{summary.generated_tokens:,} tokens in {seconds}, {speed}"
    rows = summary.completed - summary.rows_resumed
    return f"{counted(rows, 'row')} in {seconds}, {rows / max(summary.elapsed_s, 1e-9):,.1f} rows/s"


def _quantiles(p50_s: float | None, p95_s: float | None) -> str:
    return f"p50 {format_duration(p50_s)}, p95 {format_duration(p95_s)}"
