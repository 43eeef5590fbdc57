"""`gristmill status`, `wait` and `watch`: how far batches are, once, until their end, or live."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.cli import options
from gristmill.cli.failures import ExitCode
from gristmill.cli.service import BaseUrl, BatchIds, Profile, Timeout, service

if TYPE_CHECKING:
    from gristmill.client import BatchHandle, BatchState
    from gristmill.client.objects import Batch

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only the status, in one word.")]
Interval = Annotated[
    str, typer.Option("--interval", metavar="TIME", help="Between two looks, as 2s.")
]


def status(
    batch_ids: BatchIds,
    as_json: AsJson = False,
    quiet: Quiet = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """How far a batch is now, and what it waits for."""
    with service(base_url, profile, debug=debug) as client:
        show_state(client.handle(*batch_ids).status(), as_json=as_json, quiet=quiet)


def wait(
    batch_ids: BatchIds,
    timeout: Timeout = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_progress: options.NoProgress = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Wait for the end of a batch. Ctrl-C ends the waiting, never the batch.

    Exit codes: 0 every row has an answer, 3 it failed, expired or was cancelled, 4 some rows
    failed, 124 the time was over.
    """
    with service(base_url, profile, debug=debug) as client:
        handle = client.handle(*batch_ids)
        state = wait_for(handle, timeout=timeout, progress=not (no_progress or quiet))
        show_state(state, as_json=as_json, quiet=quiet)
    raise typer.Exit(exit_code_of(state))


def watch(
    batch_ids: BatchIds,
    interval: Interval = "1s",
    timeout: Timeout = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """A live view of a batch: progress, speed, latencies, what it waits for, errors by kind.

    Elsewhere than on a terminal the view is printed whenever it changes. Exit codes as for `wait`.
    """
    with service(base_url, profile, debug=debug) as client:
        from gristmill.cli.live_view import follow
        from gristmill.values import parse_duration

        state = _until_interrupt(
            batch_ids,
            lambda: follow(
                client,
                batch_ids,
                interval_s=parse_duration(interval),
                timeout_s=None if timeout is None else parse_duration(timeout),
            ),
        )
    raise typer.Exit(exit_code_of(state))


def wait_for(handle: BatchHandle, *, timeout: str | None, progress: bool) -> BatchState:
    """The state at the end. Raises WaitTimeout; Ctrl-C exits with 130."""
    from gristmill.values import parse_duration

    timeout_s = None if timeout is None else parse_duration(timeout)
    return _until_interrupt(handle.ids, lambda: handle.wait(progress=progress, timeout=timeout_s))


def _until_interrupt(batch_ids: Sequence[str], end: Callable[[], BatchState]) -> BatchState:
    try:
        return end()
    except KeyboardInterrupt as interrupt:
        ids = " ".join(batch_ids)
        typer.echo(f"\nThe batch goes on. To wait again: gristmill wait {ids}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from interrupt


def exit_code_of(state: BatchState) -> ExitCode:
    if state.status != "completed":
        return ExitCode.BATCH_FAILED
    return ExitCode.ROWS_FAILED if state.failed else ExitCode.OK


def show_state(state: BatchState, *, as_json: bool, quiet: bool) -> None:
    if quiet:
        typer.echo(state.status)
    elif as_json:
        typer.echo(json.dumps(state_document(state), ensure_ascii=False))
    else:
        from gristmill.cli.output import print_facts

        print_facts(state_facts(state))
    for part in state.parts:
        for error in part.errors.data if part.errors else ():
            where = f"line {error.line}: " if error.line else ""
            typer.echo(f"  {where}{error.code}: {error.message}", err=True)


def state_document(state: BatchState) -> dict[str, Any]:
    return {
        "status": state.status,
        "request_counts": {
            "total": state.total,
            "completed": state.completed,
            "failed": state.failed,
        },
        "usage": {
            "input_tokens": state.input_tokens,
            "cached_tokens": state.cached_tokens,
            "output_tokens": state.output_tokens,
        },
        "batches": [part.to_dict() for part in state.parts],
    }


def state_facts(state: BatchState) -> list[tuple[str, str]]:
    """For people, one fact a line."""
    from gristmill.cli.output import moment

    facts = [
        ("batch", ", ".join(part.id for part in state.parts)),
        ("status", state.status),
        ("model", ", ".join(sorted({part.model for part in state.parts if part.model}))),
        (
            "rows",
            f"{state.total:,}: {state.completed:,} answered, {state.failed:,} failed",
        ),
        (
            "tokens",
            f"{state.input_tokens:,} prompt ({state.cached_tokens:,} cached), "
            f"{state.output_tokens:,} generated",
        ),
    ]
    costs = [part.cost for part in state.parts if part.cost is not None]
    if costs:
        facts.append(("cost", f"{sum(costs):.4f}"))
    for part in state.parts:
        if part.progress is not None:
            facts.append(("now", part.progress.detail or part.progress.phase))
            if part.progress.completes_at:
                facts.append(("done at", f"about {moment(part.progress.completes_at)}"))
    facts += timing_facts(state.parts)
    due = [part.expires_at for part in state.parts if part.expires_at and not part.has_ended]
    if due:
        facts.append(("due by", moment(min(due))))
    files = [file for part in state.parts for file in (part.output_file_id, part.error_file_id)]
    if any(files):
        facts.append(("files", ", ".join(file for file in files if file)))
    return [(name, text) for name, text in facts if text]


def timing_facts(parts: Sequence[Batch]) -> list[tuple[str, str]]:
    """How long rows took, and where their time went.

    Percentiles of several batches cannot be added up; those of all their rows are none above the
    highest.
    """
    from gristmill.values import format_duration

    timed = [(part, part.timings) for part in parts if part.timings is not None]
    facts = []
    for name, field in (("TTFT", "ttft"), ("ITL", "itl"), ("wait", "wait")):
        found = [getattr(timings, f"{field}_seconds") for _, timings in timed]
        measured = [one for one in found if one is not None]
        if measured:
            highest = {q: max(getattr(one, q) for one in measured) for q in ("p50", "p90", "p99")}
            told = ", ".join(f"{q} {format_duration(value)}" for q, value in highest.items())
            facts.append((name, told if len(measured) == 1 else f"at most {told}"))
    spent: defaultdict[str, float] = defaultdict(float)
    for part, timings in timed:
        for name, seconds in (timings.mean_row_seconds or {}).items():
            spent[name] += seconds * part.request_counts.completed
    total, num_rows = sum(spent.values()), sum(part.request_counts.completed for part, _ in timed)
    if total and num_rows:
        shares = ", ".join(f"{name} {value / total:.0%}" for name, value in spent.items())
        facts.append(("time", f"{format_duration(total / num_rows)} a row: {shares}"))
    return facts
