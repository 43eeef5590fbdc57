"""`gristmill models`: what can be asked, its limits and its price."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.cli import options
from gristmill.cli.output import AsJson, Format, IdsOnly, shape_of, show_many, show_one
from gristmill.cli.service import BaseUrl, Profile, service

app = typer.Typer(
    help="Models that the service answers with: list, get.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(name="list")
@app.command(name="ls", hidden=True)
def list_(
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """All models that are served now."""
    with service(base_url, profile, debug=debug) as client:
        columns = {"id": "id", "window": "max_model_len", "price": "price"}
        shape = shape_of(format, as_json=as_json, quiet=quiet)
        show_many(client.models.list(), columns, shape)


@app.command()
def get(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Its name.")],
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """All that is known of a model."""
    with service(base_url, profile, debug=debug) as client:
        show_one(client.models.retrieve(model), shape_of(format, as_json=as_json, quiet=quiet))
