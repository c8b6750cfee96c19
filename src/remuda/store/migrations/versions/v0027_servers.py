"""Servers that run without us, and what requests to them cost."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.create_table(
        "servers",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("paid", sa.Boolean(), nullable=False),
        sa.Column("prices", sa.Text(), nullable=False),
        sa.Column("budget", sa.BigInteger(), nullable=False),
        sa.Column("parallel", sa.Integer(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "server_spending",
        sa.Column("server", sa.Text(), primary_key=True),
        sa.Column("month", sa.Text(), primary_key=True),
        sa.Column("taken", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
    )
