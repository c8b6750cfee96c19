"""Which of several GPUs a replica is given."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.add_column("replicas", sa.Column("gpus", sa.Text(), nullable=False, server_default="[]"))
