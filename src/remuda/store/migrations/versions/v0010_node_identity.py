"""What nodes are recognised by: their secret's hash, their invite, and where they come from.

Rows of earlier releases have none of it: they are bound to what first comes from their address."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    # The defaults are for rows that earlier releases go on writing.
    for name in ("source", "secret_hash", "invite", "contested_from"):
        op.add_column("nodes", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    op.add_column("nodes", sa.Column("claim", sa.Text()))
    op.create_table(
        "invites",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
