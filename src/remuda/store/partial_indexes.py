"""The indexes of some rows only, as this release knows them. Frontends do not import this: statements need no
index by name, and each such definition would have SQLAlchemy import PostgreSQL's part, on SQLite, too.
"""

from sqlalchemy import ColumnElement, Index

from remuda.store.schema import api_keys, metadata, on_its_way, operations, replicas

__all__ = ["metadata"]  # With these indexes.


def _partial(
    name: str, *columns: ColumnElement[object], where: ColumnElement[bool], unique: bool = False
) -> None:
    Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


# A revoked key's name may be given again.
_partial("api_keys_name_in_force", api_keys.c.name, where=api_keys.c.revoked_at.is_(None), unique=True)
_partial("operations_live", operations.c.asked_at, where=operations.c.finished_at.is_(None))
_partial(
    "operations_over",
    operations.c.finished_at,
    operations.c.number,
    where=operations.c.finished_at.is_not(None),
)
_partial("replicas_on_their_way", replicas.c.model, where=on_its_way)
