"""How a Ledger of an earlier version becomes one of this: Alembic's scripts."""
