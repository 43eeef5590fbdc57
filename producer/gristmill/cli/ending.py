"""`gristmill cancel` and `retry`: stop a batch, run again what has no answer."""

from __future__ import annotations

import typer

from gristmill.cli import options
from gristmill.cli.output import AsJson, IdsOnly, show_many
from gristmill.cli.service import BaseUrl, BatchIds, Profile, Yes, confirm, service


def cancel(
    batch_ids: BatchIds,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Stop a batch. What is finished is kept, and is in its results."""
    with service(base_url, profile, debug=debug) as client:
        from gristmill.cli.follow import show_state

        confirm(f"Stop {', '.join(batch_ids)}?", yes=yes)
        show_state(client.handle(*batch_ids).cancel(), as_json=as_json, quiet=quiet)


def retry(
    batch_ids: BatchIds,
    as_json: AsJson = False,
    quiet: IdsOnly = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    debug: options.Debug = False,
) -> None:
    """Run the rows of an ended batch again that failed or were never run, as a new batch."""
    with service(base_url, profile, debug=debug) as client:
        from gristmill.cli.output import Shape

        handle = client.handle(*batch_ids).retry_failed()
        if as_json:
            show_many(handle.status().parts, {}, Shape.JSON)
            return
        for batch_id in handle.ids:
            typer.echo(batch_id)
        if not quiet:
            typer.echo(f"To wait for it: gristmill wait {' '.join(handle.ids)}", err=True)
