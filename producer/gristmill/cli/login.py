"""`gristmill login` and `config show`: which service, as whom, and where each value comes from."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.cli import options
from gristmill.cli.failures import failures_reported
from gristmill.cli.service import BaseUrl, Profile

if TYPE_CHECKING:
    from gristmill.client.options import Sourced

config = typer.Typer(
    help="Settings: show.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def login(
    key: Annotated[
        str | None, typer.Argument(metavar="[-]", help="- reads the key from stdin.")
    ] = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not ask the service whether the key is live.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Keep an API key and the URL of its service for later commands and for `gristmill.Client()`.

    The key is asked for without being shown, or read from stdin with -, never given as an argument.
    """
    with failures_reported(debug=debug):
        from gristmill.client.options import (
            DEFAULT_BASE_URL,
            checked_base_url,
            config_file,
            read_profiles,
        )
        from gristmill.errors import UsageError

        name = profile or os.environ.get("GRISTMILL_PROFILE") or "default"
        path = config_file()
        profiles = read_profiles(path)
        before = profiles.get(name, {})
        if key not in (None, "-"):
            raise UsageError(
                "A key on the command line can be seen by others. Leave it out and be asked, or "
                "send it in: `gristmill login - < key.txt`."
            )
        url = checked_base_url(
            base_url
            or os.environ.get("GRISTMILL_BASE_URL")
            or before.get("base_url")
            or DEFAULT_BASE_URL
        )
        found = _read_key(url, from_stdin=key == "-")
        if not no_check:
            from gristmill.client import Client

            with Client(api_key=found, base_url=url) as client:
                num_models = len(list(client.models.list()))
            typer.echo(f"The key is live; {num_models} models are served.", err=True)
        write_profiles(path, profiles | {name: {"base_url": url, "api_key": found}})
        typer.echo(f"Kept as profile {name!r} in {path}", err=True)


@config.command()
def show(
    base_url: BaseUrl = None,
    profile: Profile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    debug: options.Debug = False,
) -> None:
    """Every setting with its value and where that comes from. Keys are not shown whole."""
    with failures_reported(debug=debug):
        from gristmill.cli.output import print_table
        from gristmill.client.options import find_address

        address = find_address(base_url=base_url, profile=profile)
        rows = [
            ("profile", address.profile.value, address.profile.source),
            ("base_url", address.base_url.value, address.base_url.source),
            ("api_key", redacted(address.api_key), address.api_key.source or "nowhere"),
            *_settings(),
        ]
        if as_json:
            document = {name: {"value": value, "source": source} for name, value, source in rows}
            typer.echo(json.dumps(document))
        else:
            print_table(["setting", "value", "from"], rows)


def redacted(key: Sourced) -> str:
    return "" if not key.value else f"{key.value[:6]}…{key.value[-2:]}"


def write_profiles(path: Path, profiles: dict[str, dict[str, str]]) -> None:
    """As a file that only its owner can read; there as a whole or not at all."""
    lines = ["# Written by `gristmill login`."]
    for name, values in profiles.items():
        lines += ["", f"[profiles.{json.dumps(name)}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(temp, path)


def _read_key(url: str, *, from_stdin: bool) -> str:
    from gristmill.errors import UsageError

    if from_stdin:
        found = sys.stdin.readline().strip()
    elif sys.stdin.isatty():
        found = typer.prompt(f"API key for {url}", hide_input=True, err=True).strip()
    else:
        raise UsageError("There is no terminal to ask for the key. Send it in: `login - < FILE`.")
    if not found:
        raise UsageError("No key came. `gristmill keys create` makes one.")
    return str(found)


def _settings() -> list[tuple[str, str, str]]:
    """Those of processes that serve, from the environment or by default."""
    from gristmill.cli.settings_from import settings_from

    made = settings_from()
    rows = []
    for name in type(made).model_fields:
        variable = f"GRISTMILL_{name.upper()}"
        is_set = variable in {key.upper() for key in os.environ}
        value = getattr(made, name)
        rows.append(
            (
                variable,
                "none" if value is None else str(value),
                "environment" if is_set else "default",
            )
        )
    return rows
