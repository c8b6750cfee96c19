"""Why a step waits, or how it ended, as a value beside the words. Earlier releases know only these."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("steps", sa.Column("cause", sa.Text()))
