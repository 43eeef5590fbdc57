"""Makes the tables of a new Ledger, or brings those of an earlier version up to this one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from gristmill.errors import UsageError
from gristmill.ledger import (
    schema_account,  # noqa: F401  # its tables are made here too
    schema_courses,  # noqa: F401
    schema_dispatch,  # noqa: F401
    schema_fleet,  # noqa: F401
    schema_idempotency,  # noqa: F401
    schema_sessions,  # noqa: F401
    schema_tickets,  # noqa: F401
    schema_webhooks,  # noqa: F401
)
from gristmill.ledger.schema import metadata

#: The newest script in migrations/versions; what an SQLite file or `gristmill_schema` tells.
SCHEMA_VERSION = 17


def make_tables(connection: Connection, found: int | None, *, name: str) -> None:
    """In one transaction. `found` is the schema that is there, None where there is nothing.

    Raises UsageError, with `name`, for a Ledger of a later version.
    """
    if found is None:
        metadata.create_all(connection)
        return
    if found > SCHEMA_VERSION:
        raise UsageError(
            f"{name} was written by another version of Gristmill (schema {found}, this one "
            f"reads up to {SCHEMA_VERSION}). Use that version, or start anew elsewhere."
        )
    if found < SCHEMA_VERSION:
        _upgrade(connection, found)


def _upgrade(connection: Connection, found: int) -> None:
    # Only here: a Ledger that is of this version already needs no Alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    if not inspect(connection).has_table("alembic_version"):
        command.stamp(config, f"{found:04d}")
    command.upgrade(config, f"{SCHEMA_VERSION:04d}")
    # The number of the schema is the one truth, also for versions that knew no Alembic.
    connection.execute(text("DROP TABLE alembic_version"))
