"""Concurrency groups of a replica's model when it was placed."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.add_column("replicas", sa.Column("concurrency_groups", sa.Text(), nullable=False, server_default="[]"))
