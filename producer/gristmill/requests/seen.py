"""Remembers every custom_id of a file and the line that had it, in constant memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence


class SeenIds:
    """A temporary database that SQLite keeps in a small cache, spills to disk and removes."""

    def __init__(self) -> None:
        # One caller at a time, but a generator may be resumed in another thread.
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA cache_size = -16384")  # KiB
        self._db.execute(
            "CREATE TABLE seen (custom_id TEXT PRIMARY KEY, line_no INTEGER) WITHOUT ROWID"
        )

    def add(self, ids: Sequence[tuple[str, int]]) -> Iterable[tuple[int, str, int]]:
        """Adds (custom_id, line_no) in line order.

        Of each id that an earlier line has: its line_no, the id, the line_no of the earlier one.
        """
        before = self._db.total_changes
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?)", ids)
        self._db.execute("COMMIT")
        if self._db.total_changes - before == len(ids):
            return ()
        return self._duplicates(ids)

    def _duplicates(self, ids: Iterable[tuple[str, int]]) -> Iterable[tuple[int, str, int]]:
        for custom_id, line_no in ids:
            (first,) = self._db.execute(
                "SELECT line_no FROM seen WHERE custom_id = ?", (custom_id,)
            ).fetchone()
            if first != line_no:
                yield line_no, custom_id, first

    def close(self) -> None:
        self._db.close()
