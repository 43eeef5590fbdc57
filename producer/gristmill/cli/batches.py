"""`gristmill batches`: the Batches API, verb by verb."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from gristmill.cli import options
from gristmill.cli.ending import cancel, retry
from gristmill.cli.follow import wait
from gristmill.cli.output import (
    After,
    All,
    AsJson,
    Format,
    IdsOnly,
    Limit,
    shape_of,
    show_many,
    show_one,
)
from gristmill.cli.results import results
from gristmill.cli.service import BaseUrl, OneBatch, Profile, Yes, confirm, service

app = typer.Typer(
    help="Batches at the service: create, list, get, wait, results, cancel, retry, delete.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(wait)
app.command()(results)
app.command()(cancel)
app.command()(retry)


@app.command()
def create(
    file_id: Annotated[str, typer.Argument(metavar="FILE", help="The id of an uploaded file.")],
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="As in the lines, /v1/chat/completions for example.")
    ] = "/v1/chat/completions",
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="To be done within, 90s to 30d.")
    ] = "24h",
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="NAME=TEXT", help="May be repeated.")
    ] = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """A batch of a file that is uploaded. `gristmill submit` does both."""
    with service(base_url, profile, debug=debug) as client:
        from gristmill.cli.pairs import text_pairs

        batch = client.batches.create(
            input_file_id=file_id,
            endpoint=endpoint,
            completion_window=window,
            metadata=text_pairs(metadata, "--metadata") or None,
        )
        show_one(batch, shape_of(format, as_json=as_json, quiet=quiet))


@app.command(name="list")
@app.command(name="ls", hidden=True)
def list_(
    limit: Limit = 20,
    after: After = None,
    all_: All = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """The newest first."""
    with service(base_url, profile, debug=debug) as client:
        found = client.batches.list(after=after, limit=100 if all_ else min(limit, 100))
        columns = {
            "id": "id",
            "status": "status",
            "rows": "request_counts.total",
            "answered": "request_counts.completed",
            "failed": "request_counts.failed",
            "model": "model",
            "created": "created_at",
        }
        shape = shape_of(format, as_json=as_json, quiet=quiet)
        show_many(islice(found, None if all_ else limit), columns, shape)


@app.command()
def get(
    batch_id: OneBatch,
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """All that is known of a batch."""
    with service(base_url, profile, debug=debug) as client:
        show_one(client.batches.retrieve(batch_id), shape_of(format, as_json=as_json, quiet=quiet))


@app.command()
def delete(
    batch_id: OneBatch,
    yes: Yes = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Forget a batch that has ended. Its files stay."""
    with service(base_url, profile, debug=debug) as client:
        confirm(f"Forget {batch_id} for good?", yes=yes)
        typer.echo(client.batches.delete(batch_id).id)
