"""`gristmill models`: what can be asked, its limits and its price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.output import (
    AsJson,
    Format,
    IdsOnly,
    Shape,
    print_table,
    shape_of,
    show_many,
    show_one,
)
from gristmill.cli.service import BaseUrl, Profile, service

if TYPE_CHECKING:
    from gristmill.client import Model

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
    """All models that are served now, with window, price and tokens per word by language."""
    with service(base_url, profile, debug=debug) as client:
        shape = shape_of(format, as_json=as_json, quiet=quiet)
        found = list(client.models.list())
        if shape is Shape.TABLE:
            print_table(*_table(found))
        else:
            show_many(found, {}, shape)


def _table(found: list[Model]) -> tuple[list[str], list[list[str]]]:
    """Tokens per word are those of the same text, by the words that it has in English."""
    languages = list(next((one.tokens_per_word for one in found if one.tokens_per_word), {}))
    headings = ["model", "window", "price in/out per 1M", *languages]
    rows = []
    for one in found:
        price = ""
        if one.price is not None:
            price = f"{one.price['prompt']:g}/{one.price['completion']:g} {one.price['currency']}"
        words = one.tokens_per_word or {}
        costs = [f"{words[name]:.1f}" if name in words else "" for name in languages]
        rows.append([one.id, f"{one.max_model_len or 0:,}", price, *costs])
    return headings, rows


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
