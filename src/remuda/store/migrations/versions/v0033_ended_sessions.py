"""Sessions of the console that people have ended by signing out."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.create_table(
        "ended_sessions",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("until", sa.BigInteger(), nullable=False),
    )
