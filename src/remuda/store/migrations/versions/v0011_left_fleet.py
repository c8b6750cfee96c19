"""Whether a departed node left the fleet for good, or was only stopped."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    # The default is for rows that earlier releases go on writing.
    op.add_column("nodes", sa.Column("left_fleet", sa.Boolean(), nullable=False, server_default=sa.false()))
