"""What keys take of models and nodes, by the day."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("day", sa.Text(), primary_key=True),
        sa.Column("key_id", sa.Text(), primary_key=True),
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("node", sa.Text(), primary_key=True),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "usage_batches",
        sa.Column("writer", sa.Text(), primary_key=True),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("written_at", sa.BigInteger(), nullable=False),
    )
