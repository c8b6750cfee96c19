"""Operations with their steps and attempts, and what workers without reports have installed."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _big(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def upgrade() -> None:
    _create_operations()
    _create_steps()
    _create_attempts()
    op.create_table(
        "node_inventories",
        *map(_text, ("node_id", "boot")),
        _big("listed_at"),
        _text("backends"),
        sa.PrimaryKeyConstraint("node_id"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], ondelete="CASCADE"),
    )
    changes = op.create_table("change_count", _count("id"), _big("latest"), sa.PrimaryKeyConstraint("id"))
    op.bulk_insert(changes, [{"id": 1, "latest": 0}])


def _create_operations() -> None:
    op.create_table(
        "operations",
        _text("id"),
        *map(_big, ("number", "change")),
        *map(_text, ("kind", "backend", "source", "roll_out", "asked_by")),
        _big("asked_at"),
        _text("wish"),
        _big("expires", nullable=True),
        _text("idempotency_key", nullable=True),
        _text("selection"),
        _big("finished_at", nullable=True),
        _flag("dismissed"),
        _count("version"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("idempotency_key", name="operations_idempotency_key_key"),
    )
    live, over = sa.text("finished_at IS NULL"), sa.text("finished_at IS NOT NULL")
    op.create_index("operations_live", "operations", ["asked_at"], sqlite_where=live, postgresql_where=live)
    op.create_index(
        "operations_over",
        "operations",
        ["finished_at", "number"],
        sqlite_where=over,
        postgresql_where=over,
    )
    op.create_index("operations_number", "operations", ["number"], unique=True)
    op.create_index("operations_change", "operations", ["change"], unique=True)


def _create_steps() -> None:
    op.create_table(
        "steps",
        *map(_text, ("op_id", "node")),
        _text("node_id", nullable=True),
        _text("node_name"),
        _text("source", nullable=True),
        *map(_text, ("goal", "state", "stage")),
        *map(_flag, ("proves", "rolls_back")),
        _big("expires", nullable=True),
        *map(_count, ("attempt", "failures")),
        _text("boot", nullable=True),
        _big("answer_by", nullable=True),
        _big("wait_until", nullable=True),
        _text("problem", nullable=True),
        _text("reason"),
        _text("replaced_by", nullable=True),
        _big("ended_at", nullable=True),
        _count("version"),
        sa.PrimaryKeyConstraint("op_id", "node"),
        sa.ForeignKeyConstraint(["op_id"], ["operations.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], ondelete="SET NULL"),
    )
    op.create_index("ix_steps_node_id", "steps", ["node_id"])
    op.create_index("steps_node", "steps", ["node", "ended_at"])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        *map(_text, ("op_id", "node")),
        _count("number"),
        _text("stage"),
        _big("begun_at"),
        _big("ended_at", nullable=True),
        _text("problem", nullable=True),
        _text("owner"),
        _big("open_until"),
        _text("progress", nullable=True),
        sa.PrimaryKeyConstraint("op_id", "node", "number"),
        sa.ForeignKeyConstraint(["op_id", "node"], ["steps.op_id", "steps.node"], ondelete="CASCADE"),
    )
