"""Opens the database and its transactions; the queries are in the files beside this one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DatabaseError, OperationalError

from gristmill.errors import StoreError, UsageError
from gristmill.ledger.migrate import SCHEMA_VERSION, make_tables

#: Marks an SQLite file as ours ("grst"); its `user_version` is the number of the schema.
_APPLICATION_ID = 0x67727374


class Ledger:
    """`with ledger.write() as conn:` is one transaction, `read()` one snapshot."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = engine.execution_options(gristmill_write=True)
        self._own: list[sqlite3.Connection] = []

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Commits at the end, or nothing at all when an exception leaves the block."""
        with _readable_errors(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with _readable_errors(), self._engine.begin() as connection:
            yield connection

    def own_connection(self) -> sqlite3.Connection | None:
        """One beside all others that commits by itself, until `close`; None if it is not SQLite."""
        if self._engine.dialect.name != "sqlite":
            return None
        pooled = self._engine.raw_connection()
        connection: sqlite3.Connection = pooled.driver_connection  # type: ignore[assignment]
        pooled.detach()
        self._own.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._own:
            connection.close()
        self._engine.dispose()


def open_sqlite(path: Path) -> Ledger:
    """One of an earlier version is brought up to this one. Raises UsageError for other files."""
    engine = create_engine(URL.create("sqlite", database=str(path)))
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    ledger = Ledger(engine)
    try:
        with ledger.write() as connection:
            make_tables(connection, _find_schema(connection, path), name=str(path))
            connection.exec_driver_sql(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except DatabaseError as error:
        ledger.close()
        raise UsageError(f"{path} cannot be used as a ledger: {error.orig}.") from error
    except (StoreError, UsageError):
        ledger.close()
        raise
    return ledger


@contextmanager
def _readable_errors() -> Iterator[None]:
    """What the database cannot do just now: a full disk, a lock that does not open."""
    try:
        yield
    except OperationalError as error:
        raise StoreError(
            f"The ledger cannot be used: {error.orig}. Put that right and go on."
        ) from error


def _find_schema(connection: Connection, path: Path) -> int | None:
    """The number of the schema; None for a new file. Raises UsageError for one of others."""

    def pragma(name: str) -> Any:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar()

    if pragma("application_id") == _APPLICATION_ID:
        return int(pragma("user_version"))
    if connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar():
        raise UsageError(f"{path} is a database, but not a ledger of Gristmill. Choose another.")
    return None


def _on_connect(dbapi_connection: Any, _record: Any) -> None:
    # The driver begins no transaction by itself, so that _on_begin decides how they begin.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 30000")
    cursor.execute("PRAGMA journal_mode = WAL")
    # A power cut may undo the newest transactions, never mix them up: the Store remembers.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    # A writer takes the lock at once: to read first and then find it taken could not be repaired.
    writes = connection.get_execution_options().get("gristmill_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
