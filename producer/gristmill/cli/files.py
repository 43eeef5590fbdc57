"""`gristmill files`: uploaded files and results, at the service."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli import options
from gristmill.cli.output import After, All, AsJson, Format, IdsOnly, Limit, shape_of
from gristmill.cli.service import BaseUrl, Profile, Yes, confirm, service

app = typer.Typer(
    help="Files at the service: create, list, get, download, delete.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FileId = Annotated[str, typer.Argument(metavar="FILE", help="Its id.")]
OutPath = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="PATH", help="Default: stdout.")
]


@app.command()
def create(
    path: Annotated[Path, typer.Argument(metavar="PATH.jsonl", help="The requests.")],
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """Upload a file of requests."""
    with service(base_url, profile, debug=debug) as client:
        from gristmill.cli.output import show_one

        show_one(client.files.create(file=path), shape_of(format, as_json=as_json, quiet=quiet))


@app.command(name="list")
@app.command(name="ls", hidden=True)
def list_(
    purpose: Annotated[
        str | None, typer.Option("--purpose", help="batch or batch_output; default: all.")
    ] = None,
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
        from gristmill.cli.output import show_many

        found = client.files.list(purpose=purpose, after=after, limit=1000 if all_ else limit)
        columns = {
            "id": "id",
            "purpose": "purpose",
            "bytes": "bytes",
            "created": "created_at",
            "expires": "expires_at",
            "name": "filename",
        }
        shape = shape_of(format, as_json=as_json, quiet=quiet)
        show_many(islice(found, None if all_ else limit), columns, shape)


@app.command()
def get(
    file_id: FileId,
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """What is known of a file."""
    with service(base_url, profile, debug=debug) as client:
        from gristmill.cli.output import show_one

        show_one(client.files.retrieve(file_id), shape_of(format, as_json=as_json, quiet=quiet))


@app.command()
def download(
    file_id: FileId,
    output: OutPath = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """The bytes of a file, checked. With -o it goes on where an earlier download broke off."""
    with service(base_url, profile, debug=debug) as client:
        if output is not None:
            client.files.download(file_id, output)
            return
        typer.get_binary_stream("stdout").write(client.files.content(file_id).content)


@app.command()
def delete(
    file_id: FileId,
    yes: Yes = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """At once and for good."""
    with service(base_url, profile, debug=debug) as client:
        confirm(f"Delete {file_id} for good?", yes=yes)
        typer.echo(client.files.delete(file_id).id)
