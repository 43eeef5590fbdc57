"""Opens the Ledger that a URL names: a file of SQLite, or a database of PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from gristmill.errors import StoreError, UsageError
from gristmill.ledger.ledger import Ledger, open_sqlite
from gristmill.ledger.migrate import SCHEMA_VERSION, make_tables

#: Two processes that start at once make the tables one after the other ("grst").
_LOCK = 0x67727374


def open_ledger(url: str) -> Ledger:
    """A path, `sqlite:///path` or `postgresql://user@host/database`.

    Raises UsageError for what cannot be a Ledger of this version, StoreError when the database
    cannot be reached.
    """
    if "://" not in url:
        return open_sqlite(Path(url).expanduser())
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UsageError(f"This is no URL of a ledger: {error}") from error
    backend = parsed.get_backend_name()
    if backend == "sqlite" and parsed.database:
        return open_sqlite(Path(parsed.database))
    if backend not in ("postgresql", "postgres"):
        raise UsageError(
            f"A ledger is a path, sqlite:///path or postgresql://user@host/database, and not "
            f"{parsed.render_as_string(hide_password=True)!r}."
        )
    return _open_postgresql(url.replace("postgres://", "postgresql://", 1))


def _open_postgresql(url: str) -> Ledger:
    parsed = make_url(url).set(drivername="postgresql+psycopg")
    shown = parsed.render_as_string(hide_password=True)
    try:
        engine = create_engine(parsed, pool_pre_ping=True, pool_recycle=1800)
    except ModuleNotFoundError as error:
        raise UsageError(f"{shown} needs {error.name}: pip install 'gristmill[server]'.") from error
    try:
        with engine.begin() as connection:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            connection.execute(
                text("CREATE TABLE IF NOT EXISTS gristmill_schema (version integer NOT NULL)")
            )
            found = connection.execute(text("SELECT version FROM gristmill_schema")).scalar()
            make_tables(connection, found, name=shown)
            connection.execute(text("DELETE FROM gristmill_schema"))
            connection.execute(
                text("INSERT INTO gristmill_schema VALUES (:version)"), {"version": SCHEMA_VERSION}
            )
    except OperationalError as error:
        engine.dispose()
        raise StoreError(f"The ledger {shown} cannot be reached: {error.orig}") from error
    except DatabaseError as error:
        engine.dispose()
        raise UsageError(f"{shown} cannot be used as a ledger: {error.orig}") from error
    except UsageError:
        engine.dispose()
        raise
    return Ledger(engine)
