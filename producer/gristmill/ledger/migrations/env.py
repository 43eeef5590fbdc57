"""Run by Alembic: on the connection, and in the transaction, that `migrate.py` gives it."""

from __future__ import annotations

from alembic import context

from gristmill.ledger.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
