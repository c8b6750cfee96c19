"""What a worker without reports listed before an upgrade was sent to it: if its reply is lost, another
installation shows that the upgrade has happened."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column("steps", sa.Column("listed_before", sa.Text(), nullable=True))
