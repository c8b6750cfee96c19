"""How fast nodes were seen to answer, to load and to receive files."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.create_table(
        "measured_rates",
        sa.Column("kind", sa.Text(), primary_key=True),
        sa.Column("node_id", sa.Text(), primary_key=True),
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("per_s", sa.Double(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("weights_bytes", sa.BigInteger(), nullable=False),
        sa.Column("measured_at", sa.BigInteger(), nullable=False),
    )
