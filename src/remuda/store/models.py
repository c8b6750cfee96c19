"""ModelStore on SQL. Names are unique in the form they have on the bus, too."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, Row, delete, insert, select, update

from remuda.core.errors import Conflict, NotFound
from remuda.scheduler.model import StoredModel
from remuda.store.database import Database
from remuda.store.schema import models
from remuda.wire.subjects import token


class SqlModelStore:
    """Implements scheduler.ports.ModelStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def models(self) -> Sequence[StoredModel]:
        return await self._database.read(lambda c, now: _models(c))

    async def put_model(self, model: StoredModel) -> StoredModel:
        return await self._database.transact(lambda c, now: _put(c, now, model))

    async def remove_model(self, name: str) -> StoredModel:
        return await self._database.transact(lambda c, now: _remove(c, name))


def _models(connection: Connection) -> list[StoredModel]:
    return [_model(row) for row in connection.execute(select(models).order_by(models.c.name)).all()]


def _put(connection: Connection, now: datetime, model: StoredModel) -> StoredModel:
    alike = select(models.c.name).where(models.c.subject_token == token(model.name))
    known = connection.scalar(alike.with_for_update())
    if known is not None and known != model.name:
        raise Conflict(
            f"the model {model.name!r} would have the same name on the bus as {known!r}",
            hint="choose a name that differs in more than dots and spaces, or remove the other model",
        )
    columns = {"text": model.text, "revision": model.revision, "origin": model.origin, "updated_at": now}
    if known is None:
        connection.execute(insert(models).values(name=model.name, subject_token=token(model.name), **columns))
    else:
        connection.execute(update(models).where(models.c.name == model.name).values(**columns))
    return replace(model, updated_at=now)


def _remove(connection: Connection, name: str) -> StoredModel:
    row = connection.execute(select(models).where(models.c.name == name).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"there is no model named {name!r}", hint="list the models to see their names")
    connection.execute(delete(models).where(models.c.name == name))
    return _model(row)


def _model(row: Row[tuple[object]]) -> StoredModel:
    return StoredModel(row.name, row.text, row.revision, row.origin, row.updated_at)
