"""Which files a model has that the fleet has brought, and which frontend fetched them."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.add_column("models", sa.Column("manifest", sa.Text(), nullable=True))
    op.add_column("models", sa.Column("kept_by", sa.Text(), nullable=False, server_default=""))
