"""Idempotency keys of wishes that joined an operation under way."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "joined_keys",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("op_id", sa.Text(), sa.ForeignKey("operations.id", ondelete="CASCADE"), nullable=False),
        sa.Column("selection", sa.Text(), nullable=False),
        sa.Column("joined_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_joined_keys_op_id", "joined_keys", ["op_id"])
