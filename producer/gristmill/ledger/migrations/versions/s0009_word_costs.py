"""Schema 9: what a word takes in tokens, of each model and language."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("models", sa.Column("tokens_per_word", sa.JSON(none_as_null=True)))
