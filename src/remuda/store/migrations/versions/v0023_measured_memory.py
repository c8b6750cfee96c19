"""What replicas were measured to take, and what those in VRAM set aside in RAM."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column(
        "replicas", sa.Column("ram_beside_bytes", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.create_table(
        "measured_memory",
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("revision", sa.Text(), primary_key=True),
        sa.Column("build", sa.Text(), primary_key=True),
        sa.Column("hardware", sa.Text(), primary_key=True),
        sa.Column("vram_bytes", sa.BigInteger(), nullable=False),
        sa.Column("ram_bytes", sa.BigInteger(), nullable=False),
        sa.Column("measured_at", sa.BigInteger(), nullable=False),
    )
