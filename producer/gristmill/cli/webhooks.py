"""`gristmill webhooks`: where the service tells what became of batches."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from gristmill.cli import options
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
from gristmill.cli.service import BaseUrl, Profile, Yes, confirm, service

app = typer.Typer(
    help="Webhook endpoints: create, list, get, test, replay, delete.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EndpointId = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Its id.")]
_ENDS = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")


@app.command()
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where events are sent.")],
    name: Annotated[
        str, typer.Option("--name", metavar="TEXT", help="What it is for.")
    ] = "webhook",
    events: Annotated[
        list[str] | None,
        typer.Option("--event", metavar="TYPE", help="May be repeated; default: every end."),
    ] = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """The signing secret is shown now, and never again."""
    with service(base_url, profile, debug=debug) as client:
        made = client.webhooks.create(name=name, url=url, event_types=events or list(_ENDS))
        show_one(made, shape_of(format, as_json=as_json, quiet=quiet))


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
        found = client.webhooks.list(after=after, limit=100 if all_ else min(limit, 100))
        columns = {"id": "id", "enabled": "enabled", "name": "name", "url": "url"}
        shape = shape_of(format, as_json=as_json, quiet=quiet)
        show_many(islice(found, None if all_ else limit), columns, shape)


@app.command()
def get(
    endpoint_id: EndpointId,
    base_url: BaseUrl = None,
    profile: Profile = None,
    format: Format = None,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    debug: options.Debug = False,
) -> None:
    """All that is known of an endpoint, but for its secret."""
    with service(base_url, profile, debug=debug) as client:
        shape = shape_of(format, as_json=as_json, quiet=quiet)
        show_one(client.webhooks.retrieve(endpoint_id), shape)


@app.command()
def test(
    endpoint_id: EndpointId,
    event: Annotated[
        str, typer.Option("--event", metavar="TYPE", help="What the sample tells of.")
    ] = "batch.completed",
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Send a sample event now, and say what the receiver answered."""
    with service(base_url, profile, debug=debug) as client:
        answered = client.webhooks.test(endpoint_id, event_type=event)
        typer.echo(f"The receiver answered {answered.status_code}.")


@app.command()
def replay(
    event_id: Annotated[
        str | None, typer.Argument(metavar="[EVENT]", help="One event, by its id.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="As 2h (ago), 2026-11-30T10:00Z or seconds."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Likewise; default: now.")
    ] = None,
    endpoint_id: Annotated[
        str | None, typer.Option("--endpoint", metavar="ENDPOINT", help="Only to this one.")
    ] = None,
    events: Annotated[
        list[str] | None,
        typer.Option("--event", metavar="TYPE", help="May be repeated; default: all."),
    ] = None,
    undelivered: Annotated[
        bool, typer.Option("--undelivered", help="Not what has arrived there once.")
    ] = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Tell again what happened: one event, or all from --since to --until, the oldest first.

    As after an outage of the receiver. Each has its id of the first time.
    """
    with service(base_url, profile, debug=debug) as client:
        import time

        from gristmill.errors import UsageError
        from gristmill.values import counted, parse_moment

        if (event_id is None) == (since is None):
            raise UsageError("Say what: the id of an event, or --since TIME for all since then.")
        if event_id is not None:
            if until or endpoint_id or events or undelivered:
                raise UsageError("--until, --endpoint, --event, --undelivered go with --since.")
            told = client.webhooks.events.replay(event_id)
            typer.echo(
                f"1 event is sent again to {counted(len(told.deliveries or ()), 'endpoint')}."
            )
            return
        now = time.time()
        done = client.webhooks.events.replay_between(
            parse_moment(since or "", now=now),
            None if until is None else parse_moment(until, now=now),
            event_types=events,
            webhook_endpoint_id=endpoint_id,
            undelivered_only=undelivered,
        )
        sent = counted(done.num_deliveries, "time")
        typer.echo(f"{counted(done.num_events, 'event')}, sent again {sent}.")


@app.command()
def delete(
    endpoint_id: EndpointId,
    yes: Yes = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Nothing is sent to it any more."""
    with service(base_url, profile, debug=debug) as client:
        confirm(f"Delete {endpoint_id} for good?", yes=yes)
        typer.echo(client.webhooks.delete(endpoint_id).id)
