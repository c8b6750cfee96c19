"""What the files of models say of themselves, for frontends that do not have them."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    op.add_column("models", sa.Column("seen", sa.Text(), nullable=True))
