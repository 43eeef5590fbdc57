"""A Ledger of the first schema on PostgreSQL is brought up to this one, as one on SQLite is."""

from __future__ import annotations

import importlib
from uuid import uuid4

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from postgresql import postgresql as postgresql
from postgresql import postgresql_process as postgresql_process
from sqlalchemy import create_engine, make_url, text

from gristmill.ledger import batches
from gristmill.ledger.open import open_ledger
from gristmill.ledger.schema import metadata


def test_a_ledger_of_the_first_schema_goes_on_on_postgresql(postgresql: str) -> None:
    server = make_url(postgresql).set(drivername="postgresql+psycopg")
    database = f"old_{uuid4().hex}"
    with create_engine(server, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(f"CREATE DATABASE {database}"))
    url = server.set(database=database)
    first = importlib.import_module("gristmill.ledger.migrations.versions.s0001_batches")
    with create_engine(url).begin() as connection:
        with Operations.context(MigrationContext.configure(connection)):
            first.upgrade()
        connection.execute(text("CREATE TABLE gristmill_schema (version integer NOT NULL)"))
        connection.execute(text("INSERT INTO gristmill_schema VALUES (1)"))

    for _ in range(2):  # the second time there is nothing to do
        ledger = open_ledger(url.set(drivername="postgresql").render_as_string(hide_password=False))
        with ledger.read() as conn:
            differences = compare_metadata(MigrationContext.configure(conn), metadata)
            found = batches.list_newest(conn, "acme")
        ledger.close()

        names = {getattr(change[1], "name", None) for change in differences}
        assert names <= {"gristmill_schema"} and found == []
