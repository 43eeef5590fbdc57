"""`gristmill submit` and `estimate`: a data set becomes a batch, or what it would take is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.cli import options
from gristmill.cli.failures import ExitCode
from gristmill.cli.service import BaseUrl, Profile, Timeout, service

if TYPE_CHECKING:
    from gristmill.client.more_objects import Estimate

_SOURCE_HELP = "JSONL, CSV, Parquet or Arrow (.gz, .zst), s3://…, or - for JSON lines from stdin."
_MODEL_HELP = "What is to answer. Not needed where the rows are whole requests."
_TEMPLATE_HELP = 'The prompt over columns, as "Review: {text}". @FILE reads it from a file.'
_PARAM_HELP = "A field of every request, as temperature=0. May be repeated."
_CAP_HELP = "More rows become several batches, shown as one. 50k is 50,000."

Source = Annotated[str, typer.Argument(metavar="INPUT", help=_SOURCE_HELP)]
Model = Annotated[str | None, typer.Option("--model", metavar="MODEL", help=_MODEL_HELP)]
TemplateText = Annotated[
    str | None, typer.Option("-t", "--template", metavar="TEXT", help=_TEMPLATE_HELP)
]
System = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="The system message, likewise.")
]
Endpoint = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="PATH", help="As /v1/embeddings; default: by the rows."),
]
IdColumn = Annotated[
    str | None, typer.Option("--id-column", metavar="NAME", help="Default: row-1, row-2 …")
]
Params = Annotated[
    list[str] | None, typer.Option("-p", "--param", metavar="NAME=VALUE", help=_PARAM_HELP)
]


def submit(
    source: Source,
    model: Model = None,
    template: TemplateText = None,
    system: System = None,
    endpoint: Endpoint = None,
    id_column: IdColumn = None,
    params: Params = None,
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="To be done within, 90s to 30d.")
    ] = "24h",
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="NAME=TEXT", help="May be repeated.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", help="-100 to 100 among your batches.")
    ] = None,
    max_total_tokens: Annotated[
        str | None,
        typer.Option("--max-total-tokens", metavar="N", help="End it when so many are used, 1.5m."),
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", metavar="N", help="The same, in money.")
    ] = None,
    webhook_url: Annotated[
        str | None, typer.Option("--webhook-url", metavar="URL", help="Where its end is told.")
    ] = None,
    max_rows: Annotated[
        str, typer.Option("--max-rows-per-batch", metavar="N", help=_CAP_HELP)
    ] = "1m",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT", help="Wait, and write the results there."),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="With -o: put each result behind its row of INPUT.")
    ] = False,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print the id and no more.")] = False,
    no_progress: options.NoProgress = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Answer every row of a data set. Prints the id of the batch, and does not wait for it.

    Exit codes with --wait or -o: as for `wait`.
    """
    with service(base_url, profile, debug=debug) as client:
        from gristmill.cli.follow import exit_code_of, show_state, wait_for
        from gristmill.cli.pairs import json_pairs, text_pairs
        from gristmill.client.progress import upload_shown
        from gristmill.errors import UsageError
        from gristmill.values import parse_count

        if join and output is None:
            raise UsageError("--join needs a file for the rows: -o OUT.")
        if join and source == "-":
            raise UsageError("stdin cannot be read twice, which --join needs. Give a file.")
        with upload_shown(not (quiet or no_progress)) as on_bytes:
            handle = client.submit(
                source,
                **_recipe(model, template, system, endpoint, id_column),
                completion_window=window,
                metadata=text_pairs(metadata, "--metadata") or None,
                priority=priority,
                max_total_tokens=None
                if max_total_tokens is None
                else parse_count(max_total_tokens),
                max_cost=max_cost,
                webhook_url=webhook_url,
                max_rows_per_batch=parse_count(max_rows),
                on_bytes=on_bytes,
                **json_pairs(params, "--param"),
            )
        waits = wait or output is not None
        if not (waits and as_json):
            for batch_id in handle.ids:
                typer.echo(batch_id)
        if webhook_url and not quiet:
            typer.echo(f"Deliveries are signed with {handle.webhook_secret}", err=True)
        if not waits:
            if not quiet:
                typer.echo(f"To wait for it: gristmill wait {' '.join(handle.ids)}", err=True)
            return
        state = wait_for(handle, timeout=timeout, progress=not (quiet or no_progress))
        if output is not None:
            num_rows = handle.download(output, join=source if join else None, id_column=id_column)
            typer.echo(f"{num_rows:,} rows in {output}", err=True)
        if not quiet:
            show_state(state, as_json=as_json, quiet=False)
    raise typer.Exit(exit_code_of(state))


def estimate(
    source: Source,
    model: Model = None,
    template: TemplateText = None,
    system: System = None,
    endpoint: Endpoint = None,
    id_column: IdColumn = None,
    params: Params = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """What `submit` of the same would take: exact prompt tokens, cost, time, problems by line.

    Exit codes: 0 it would run, 3 it would fail as a whole, 4 some rows would be refused.
    """
    with service(base_url, profile, debug=debug) as client:
        from gristmill.cli.output import print_facts
        from gristmill.cli.pairs import json_pairs

        made = client.estimate(
            source,
            **_recipe(model, template, system, endpoint, id_column),
            **json_pairs(params, "--param"),
        )
        if as_json:
            typer.echo(json.dumps(made.to_dict(), ensure_ascii=False))
        else:
            print_facts(_facts(made))
            for problem in made.problems:
                where = f"line {problem.line}: " if problem.line else ""
                typer.echo(f"  {where}{problem.code}: {problem.message}", err=True)
    if not made.would_run:
        raise typer.Exit(ExitCode.BATCH_FAILED)
    raise typer.Exit(ExitCode.ROWS_FAILED if made.request_counts.refused else ExitCode.OK)


def _recipe(
    model: str | None,
    template: str | None,
    system: str | None,
    endpoint: str | None,
    id_column: str | None,
) -> dict[str, Any]:
    return {
        "model": model,
        "template": _text_of(template),
        "system": _text_of(system),
        "endpoint": endpoint,
        "id_column": id_column,
    }


def _text_of(given: str | None) -> str | None:
    """A text, or that of the file behind an @."""
    if given is None or not given.startswith("@"):
        return given
    return Path(given[1:]).read_text(encoding="utf-8")


def _facts(made: Estimate) -> list[tuple[str, str]]:
    from gristmill.values import format_duration

    counts = made.request_counts
    facts = [
        (
            "rows",
            f"{counts.total:,}"
            + (f", {counts.refused:,} of them would be refused" * bool(counts.refused)),
        ),
        ("model", made.model or ""),
        ("prompt", f"{made.input_tokens:,} tokens"),
    ]
    if made.output_tokens is not None:
        expected = made.output_tokens.expected
        told = "" if expected is None else f"about {expected:,}, "
        facts.append(("output", f"{told}at most {made.output_tokens.max:,} tokens"))
    if made.cost is not None:
        expected_cost = "" if made.cost.expected is None else f"about {made.cost.expected:.4f}, "
        facts.append(
            (
                "cost",
                f"{expected_cost}{made.cost.min:.4f} to {made.cost.max:.4f} {made.cost.currency}",
            )
        )
    if made.seconds is not None:
        facts.append(
            ("time", f"{format_duration(made.seconds.min)} to {format_duration(made.seconds.max)}")
        )
    if not made.would_run:
        facts.append(("verdict", "the batch would fail as a whole"))
    return [(name, text) for name, text in facts if text]
