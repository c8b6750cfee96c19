"""Keys that are for certain models only."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    # The default is for rows that are there, and for those that earlier releases go on writing.
    op.add_column("api_keys", sa.Column("models", sa.Text(), nullable=False, server_default="[]"))
