"""What a successful reply said about its attempt, such as that there was nothing to do."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("note", sa.Text(), nullable=True))
