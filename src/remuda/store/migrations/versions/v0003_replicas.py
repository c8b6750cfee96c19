"""Replicas with the number of their last change, and the models that are configured."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _big(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def upgrade() -> None:
    _create_replicas()
    changes = op.create_table(
        "replica_change_count", _count("id"), _big("latest"), sa.PrimaryKeyConstraint("id")
    )
    op.bulk_insert(changes, [{"id": 1, "latest": 0}])
    op.create_table(
        "models",
        *map(_text, ("name", "subject_token", "text", "revision", "origin")),
        _big("updated_at"),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("subject_token", name="models_subject_token_key"),
    )


def _create_replicas() -> None:
    op.create_table(
        "replicas",
        _text("model"),
        _count("number"),
        *map(_text, ("node_id", "state", "op_id", "backend", "revision")),
        _big("memory_bytes"),
        sa.Column("in_vram", sa.Boolean(), nullable=False),
        _count("parallel"),
        *map(_text, ("address", "protocol", "path", "instance")),
        _text("boot", nullable=True),
        *map(_big, ("created_at", "updated_at")),
        _big("last_used", nullable=True),
        _text("why"),
        _big("change"),
        sa.PrimaryKeyConstraint("model", "number"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], ondelete="CASCADE"),
    )
    op.create_index("ix_replicas_node_id", "replicas", ["node_id"])
    on_its_way = sa.text("state IN ('staging', 'loading')")
    op.create_index(
        "replicas_on_their_way",
        "replicas",
        ["model"],
        unique=True,
        sqlite_where=on_its_way,
        postgresql_where=on_its_way,
    )
