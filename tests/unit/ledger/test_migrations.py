"""A Ledger of an earlier version is brought up to this one, and nothing in it is lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from pipeline import TENANT
from typer.testing import CliRunner

from gristmill.cli import app
from gristmill.errors import UsageError
from gristmill.ledger import batches
from gristmill.ledger.files import get as get_file
from gristmill.ledger.ledger import open_sqlite
from gristmill.ledger.migrate import SCHEMA_VERSION
from gristmill.ledger.schema import metadata

SCHEMA_1 = Path(__file__).with_name("schema_1.sql")


@pytest.fixture
def old_ledger(tmp_path: Path) -> Path:
    """A Ledger with a batch and a file, as the first version of Gristmill made it."""
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(SCHEMA_1.read_text())
    return path


def test_a_ledger_of_the_first_schema_goes_on(old_ledger: Path) -> None:
    for _ in range(2):  # the second time there is nothing to do
        ledger = open_sqlite(old_ledger)
        with ledger.read() as conn:
            (batch,) = batches.list_newest(conn, TENANT)
            file = get_file(conn, TENANT, "file-1", now=99)
            differences = compare_metadata(MigrationContext.configure(conn), metadata)
        ledger.close()

        assert (batch.id, batch.total, batch.input_file_id) == ("batch_1", 3, None)
        assert file is not None and file.expires_at is None
        assert differences == []
    with sqlite3.connect(old_ledger) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_a_ledger_of_a_later_version_is_refused_and_left_alone(old_ledger: Path) -> None:
    with sqlite3.connect(old_ledger) as connection:
        connection.execute("PRAGMA user_version = 99")
        before = list(connection.iterdump())

    with pytest.raises(UsageError, match="schema 99"):
        open_sqlite(old_ledger)

    with sqlite3.connect(old_ledger) as connection:
        assert list(connection.iterdump()) == before


def test_a_command_migrates_ahead_of_the_processes(old_ledger: Path) -> None:
    command = ["ledger", "migrate", "--ledger", str(old_ledger)]
    for _ in range(2):
        done = CliRunner().invoke(app, command)

        assert done.exit_code == 0, done.output
        assert f"schema {SCHEMA_VERSION}" in done.output
    with sqlite3.connect(old_ledger) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        connection.execute("PRAGMA user_version = 99")

    newer = CliRunner().invoke(app, command)
    unnamed = CliRunner().invoke(app, command[:2], env={"GRISTMILL_LEDGER": ""})

    assert newer.exit_code == 2 and "schema 99" in newer.output
    assert unnamed.exit_code == 2
