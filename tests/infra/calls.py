"""Holds a command line and an environment to the command line and the settings that there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import typer.main

from gristmill.cli import app
from gristmill.process.health import parse_address
from gristmill.settings import Settings
from gristmill.values import parse_duration

#: Of options that are texts: how the command reads them.
_READERS = {
    "health": parse_address,
    "grace": parse_duration,
    "idle_exit": parse_duration,
    "flush_interval": parse_duration,
}


def check_call(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of `gristmill ARGV` as typer reads them. Raises what it raises."""
    command: Any = typer.main.get_command(app)
    words = list(argv)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"no command: {argv}"
        command = command.commands[words.pop(0)]
    with patch.dict("os.environ", dict(environ), clear=True):
        params: dict[str, Any] = command.make_context(argv[0], words).params
        Settings()
    for name, read in _READERS.items():
        if params.get(name) is not None:
            read(params[name])
    return params


def known_variables() -> set[str]:
    """Every GRISTMILL_ variable that a setting or an option reads."""

    def envvars(command: Any) -> Iterator[str]:
        for parameter in command.params:
            if parameter.envvar:
                yield parameter.envvar
        for below in getattr(command, "commands", {}).values():
            yield from envvars(below)

    settings = {f"GRISTMILL_{name.upper()}" for name in Settings.model_fields}
    return settings | set(envvars(typer.main.get_command(app)))


def command_names() -> set[str]:
    command: Any = typer.main.get_command(app)
    return set(command.commands)
