"""When each node registered last, and the hash of what it sent: a peer that repeats it has not restarted."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("registered_at", sa.BigInteger(), nullable=True))
    # The default is for rows that are there, and for those that earlier releases go on writing.
    op.add_column("nodes", sa.Column("registration_hash", sa.Text(), nullable=False, server_default=""))
