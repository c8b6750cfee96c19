"""The times in which frontends listened, one row per frontend and unbroken stretch."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    type_coerce,
    update,
)

from remuda.core import limits
from remuda.core.ids import FrontendId
from remuda.fleet.health import ListeningPeriod, ListeningPeriods
from remuda.store.schema import command_probes, hearing_spans, node_dials, nodes

_GAP_MAX = timedelta(seconds=limits.HEARING_GAP_MAX_S)
_LATELY = timedelta(seconds=limits.LISTENING_LATELY_S)
_AHEAD_MAX = timedelta(seconds=limits.HEARING_AHEAD_MAX_S)
_WELL_BEFORE = timedelta(hours=1)  # More than the time between that change and the next proof of hearing.

# Built once: these run again and again.
_SPANS = select(hearing_spans.c.since, hearing_spans.c.until)
_LATEST = select(func.max(hearing_spans.c.until))
_NEWEST = (
    select(hearing_spans.c.id, hearing_spans.c.until)
    .where(hearing_spans.c.frontend == bindparam("listener"))
    .order_by(hearing_spans.c.id.desc())
    .limit(1)
)
_BEGIN = insert(hearing_spans)
_EXTEND = update(hearing_spans).where(hearing_spans.c.id == bindparam("span"))
_UNBROKEN = select(hearing_spans.c.frontend).where(hearing_spans.c.until >= bindparam("unbroken_since"))
_LISTENING = select(hearing_spans.c.frontend).where(hearing_spans.c.until >= bindparam("lately_since"))


def listened_lately(table: Table) -> ColumnElement[bool]:
    """Rows written by frontends that are still there, by the values of `lately`."""
    return table.c.frontend.in_(_LISTENING)


_FORGET_CALLS: Final = tuple(
    delete(table).where(~listened_lately(table)) for table in (node_dials, command_probes)
)


def read_hearing(connection: Connection) -> ListeningPeriods:
    spans = connection.execute(_SPANS)
    return ListeningPeriods.of(ListeningPeriod(span.since, span.until) for span in spans)


def listen(connection: Connection, now: datetime, frontend: FrontendId, *, resumed: bool) -> None:
    """Extend the frontend's span to now, or begin a new one where it cannot have heard everything."""
    _follow_clock(connection, now)
    newest = connection.execute(_NEWEST, {"listener": frontend}).one_or_none()
    if newest is None or resumed or now - newest.until > _GAP_MAX:
        connection.execute(_BEGIN, {"frontend": frontend, "since": now, "until": now})
        _forget_old(connection, now)
    else:
        until = max(now, newest.until)
        connection.execute(_EXTEND, {"span": newest.id, "until": until})


def _follow_clock(connection: Connection, now: datetime) -> None:
    """Where the clock was set back, what was heard would lie in the future, and no node's silence could be
    told until the clock has caught up. Move it into the past, and so far that it ends before whatever was
    heard since: no frontend was listening then."""
    latest = connection.scalar(_LATEST)
    if latest is None or latest - now <= _AHEAD_MAX:
        return
    back = (latest - now + _WELL_BEFORE) // timedelta(microseconds=1)
    spans = hearing_spans.c
    connection.execute(
        update(hearing_spans).values(
            since=type_coerce(spans.since, BigInteger) - back,
            until=type_coerce(spans.until, BigInteger) - back,
        )
    )
    # A node that was heard since then is left as it is.
    for heard in (nodes.c.last_heartbeat, nodes.c.bus_trouble_heard_at):
        moved = {heard.name: type_coerce(heard, BigInteger) - back}
        connection.execute(update(nodes).where(heard > now).values(moved))


def listeners(connection: Connection, now: datetime) -> frozenset[FrontendId]:
    """The frontends whose span has not ended."""
    unbroken = connection.scalars(_UNBROKEN, {"unbroken_since": now - _GAP_MAX})
    return frozenset(FrontendId(frontend) for frontend in unbroken)


def lately(now: datetime) -> Mapping[str, datetime]:
    return {"lately_since": now - _LATELY}


def _forget_old(connection: Connection, now: datetime) -> None:
    """Keep the newest spans. One that never grew goes first: it says nothing, and a frontend that resumes
    over and over would otherwise crowd out the spans by which silence is measured."""
    spans = hearing_spans.c
    never_grew = and_(spans.since == spans.until, spans.until < now - _GAP_MAX)
    newest = select(spans.id).order_by(spans.until.desc(), spans.id.desc()).limit(limits.HEARING_SPANS_MAX)
    connection.execute(delete(hearing_spans).where(or_(never_grew, spans.id.not_in(newest))))
    for forget in _FORGET_CALLS:
        connection.execute(forget, lately(now))
