"""What frontends have set aside of what keys may take."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.create_table(
        "key_leases",
        sa.Column("key_id", sa.Text(), primary_key=True),
        sa.Column("kind", sa.Text(), primary_key=True),
        sa.Column("begins_at", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("holder", sa.Text(), primary_key=True),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("renewed_at", sa.BigInteger(), nullable=False),
    )
