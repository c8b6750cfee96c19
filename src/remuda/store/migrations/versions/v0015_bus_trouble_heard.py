"""When a worker last said that it cannot connect to the bus: it runs, though it sends no heartbeats."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("bus_trouble_heard_at", sa.BigInteger(), nullable=True))
