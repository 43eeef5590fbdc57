"""The commands that speak to a service, put under their names."""

from __future__ import annotations

import typer

from gristmill.cli import batches, files, login, models, webhooks
from gristmill.cli.doctor import doctor
from gristmill.cli.ending import cancel, retry
from gristmill.cli.follow import status, wait, watch
from gristmill.cli.results import results
from gristmill.cli.submit import estimate, submit
from gristmill.cli.workers import workers

_PANEL = "With a service"


def add_client_commands(app: typer.Typer) -> None:
    """Short cuts for what is done every day, and the API verb by verb."""
    for command in (submit, estimate, status, wait, watch, results, cancel, retry):
        app.command(rich_help_panel=_PANEL)(command)
    for name, group in (
        ("files", files.app),
        ("batches", batches.app),
        ("models", models.app),
        ("webhooks", webhooks.app),
        ("config", login.config),
    ):
        app.add_typer(group, name=name, rich_help_panel=_PANEL)
    app.command(rich_help_panel=_PANEL)(workers)
    app.command(rich_help_panel=_PANEL)(login.login)
    app.command(rich_help_panel=_PANEL)(doctor)
