"""What keys may take, whether they are paused, and when they were used last."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    # The defaults are for rows that are there, and for those that earlier releases go on writing.
    op.add_column("api_keys", sa.Column("terms", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("api_keys", sa.Column("paused", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("api_keys", sa.Column("last_used_at", sa.BigInteger()))
