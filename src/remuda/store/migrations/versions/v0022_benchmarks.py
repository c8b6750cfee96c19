"""How fast models were measured to be, and where."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.create_table(
        "benchmarks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("model", sa.Text(), nullable=False, index=True),
        sa.Column("node_name", sa.Text(), nullable=False),
        sa.Column("streams", sa.Integer(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("first_token_ms", sa.Double(), nullable=False),
        sa.Column("first_token_p95_ms", sa.Double(), nullable=False),
        sa.Column("tokens_per_s", sa.Double(), nullable=False),
        sa.Column("prompt_tokens_per_s", sa.Double(), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("measured_at", sa.BigInteger(), nullable=False),
    )
