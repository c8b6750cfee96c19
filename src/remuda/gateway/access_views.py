"""API keys, and servers that run without us, in the words of the API: without their secrets."""

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import Final

from remuda.accounts.keys import ApiKey
from remuda.accounts.terms import KeyTerms
from remuda.core.ids import ReplicaKey
from remuda.core.prices import exact, rounded
from remuda.router.table import Table
from remuda.servers.routing import model_name
from remuda.servers.service import ServerState
from remuda.wire.admin import KeyView
from remuda.wire.servers import ServerModel, ServerView

TERMS: Final = tuple(one.name for one in fields(KeyTerms))


def key_view(key: ApiKey, now: datetime) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        scope=key.scope,
        hint=key.hint,
        created_at=key.created_at,
        models=key.models,
        state=key.state(now).value,
        last_used_at=key.last_used_at,
        **{name: getattr(key.terms, name) for name in TERMS},
    )


InFlight = Callable[[ReplicaKey], int]


def server_view(state: ServerState, table: Table, in_flight: InFlight) -> ServerView:
    """`table`: that requests are routed by."""
    server, condition = state.adopted.server, state.adopted.condition
    return ServerView(
        name=server.name,
        url=str(server.url),
        kind=server.kind.value,
        has_key=bool(server.key),
        up=condition.up,
        reason=condition.reason,
        since=condition.since,
        asked_at=condition.asked_at,
        paid=server.paid,
        prices={model: str(price) for model, price in server.prices.items()},
        budget=exact(server.budget) if server.paid else "",
        spent=rounded(state.spent) if server.paid else "",
        committed=rounded(state.committed) if server.paid else "",
        parallel=server.parallel,
        max_tokens=server.max_tokens,
        models=tuple(_model(state, model, table, in_flight) for model in condition.models),
    )


def _model(state: ServerState, model: str, table: Table, in_flight: InFlight) -> ServerModel:
    server = state.adopted.server
    name = model_name(server.name, model)
    entry, price = table.models.get(name), server.price(model)
    return ServerModel(
        name=name,
        price="" if price is None else str(price),
        in_flight=in_flight(ReplicaKey(name, 0)),
        reason=("" if entry is None else entry.absence) or state.unused.get(model, ""),
    )
