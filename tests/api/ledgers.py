"""An empty Ledger on SQLite and on PostgreSQL, for queries that must give the same on both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgresql import postgresql as postgresql
from postgresql import postgresql_process as postgresql_process

from gristmill.ledger.ledger import Ledger
from gristmill.ledger.open import open_ledger


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """The server of PostgreSQL keeps what other tests of a module have put there."""
    url = str(tmp_path / "ledger.sqlite")
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgresql"))
    opened = open_ledger(url)
    yield opened
    opened.close()
