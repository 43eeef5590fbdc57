"""How a command reaches the service, and the options that all such commands have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli.failures import failures_reported

if TYPE_CHECKING:
    from gristmill.client import Client

_URL_HELP = "The service, as http://HOST:8000/v1. Default: GRISTMILL_BASE_URL, then the profile."

BaseUrl = Annotated[str | None, typer.Option("--base-url", metavar="URL", help=_URL_HELP)]
Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Which one of those that `login` has made."),
]
BatchIds = Annotated[
    list[str], typer.Argument(metavar="BATCH...", help="Several ids are shown as one.")
]
OneBatch = Annotated[str, typer.Argument(metavar="BATCH", help="Its id.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", metavar="TIME", help="Wait at most so long, as 30s, 5m or 2h."),
]


@contextmanager
def service(base_url: str | None, profile: str | None, *, debug: bool) -> Iterator[Client]:
    """The client; what goes wrong becomes a message and an exit code."""
    with failures_reported(debug=debug):
        from gristmill.client import Client

        with Client(base_url=base_url, profile=profile) as client:
            yield client


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone. Raises UsageError where nobody can be asked."""
    import sys

    from gristmill.errors import UsageError

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("Nobody can be asked here. Give --yes if you are sure.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
