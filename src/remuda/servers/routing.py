"""Adopted servers in the table that is routed by: their models under the server's name, and those that
configured models list as `upstreams`, in that order. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.router.table import Route, RoutedModel, Table
from remuda.servers.model import AdoptedServer, Server, ServerKind

_MODELS_KNOWN_MAX: Final = 10_000
_PROTOCOLS: Final = {
    ServerKind.OPENAI: "http",
    ServerKind.OLLAMA: "http",  # It speaks OpenAI's API too.
    ServerKind.ANTHROPIC: "anthropic",
}


def model_name(server: str, model: str) -> str:
    """What a server's model is called here."""
    return f"{server}/{model}"


def with_servers(table: Table, adopted: Sequence[AdoptedServer]) -> Table:
    """A configured model of the same name comes first."""
    servers = {one.server.name: one for one in adopted}
    models = dict(table.models)
    for one in adopted:
        for model in one.condition.models:
            models.setdefault(model_name(one.server.name, model), _entry(one, model))
    for name, entry in table.models.items():
        if entry.config.upstreams:
            models[name] = _overflowing(entry, servers)
    return replace(table, models=MappingProxyType(models))


def _entry(one: AdoptedServer, model: str) -> RoutedModel:
    place = _place(one, model)
    routes = () if place.route is None else (place.route,)
    config = _config(model_name(one.server.name, model))
    return RoutedModel(
        config, routes, listed=bool(routes), ours=False, absence=place.reason, unpriced=place.unpriced
    )


def _overflowing(entry: RoutedModel, servers: Mapping[str, AdoptedServer]) -> RoutedModel:
    places = [_listed(entry, name, servers) for name in entry.config.upstreams]
    overflow = tuple(place.route for place in places if place.route is not None)
    absence = "; ".join(place.reason for place in places if place.reason)
    ours = bool(entry.config.file or entry.config.backend)
    return replace(
        entry,
        overflow=overflow,
        listed=entry.listed or bool(overflow),
        ours=ours,
        absence=absence,
        unpriced=not ours and all(place.unpriced for place in places),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A model on a server: where requests for it go, or why none do."""

    route: Route | None = None
    reason: str = ""
    unpriced: bool = False


def _listed(entry: RoutedModel, name: str, servers: Mapping[str, AdoptedServer]) -> _Place:
    """Of SERVER/MODEL, or of SERVER alone where the model is called there what it is called here."""
    server, _, model = name.partition("/")
    one = servers.get(server)
    if one is None:
        added = f"an admin adds it with: remuda servers add URL --name {server}"
        return _Place(reason=f"there is no server {server!r} ({added})")
    wanted = model or entry.config.id
    if not one.condition.up:
        return _Place(reason=absence(one))
    known = one.condition.models
    if wanted not in known and f"{wanted}:latest" in known:
        wanted = f"{wanted}:latest"
    if wanted not in known:
        return _Place(reason=f"the server {server} has no model {wanted!r}")
    return _place(one, wanted)


def is_upstream(config: ModelConfig, route: Route) -> bool:
    """Whether requests for this model may go by this route, which is to a server."""
    names = {route.key.model, route.key.model.removesuffix(":latest")}
    if config.id in names or names & {*config.upstreams}:
        return True
    return route.server in config.upstreams and route.endpoint.model.removesuffix(":latest") == config.id


def _place(one: AdoptedServer, model: str) -> _Place:
    if not one.condition.up:
        return _Place(reason=absence(one))
    if one.server.paid and one.server.price(model) is None:
        command = f"remuda servers edit {one.server.name} --price {model}=READ/WRITTEN"
        reason = f"{model} has no price on the server {one.server.name} (an admin says it with: {command})"
        return _Place(reason=reason, unpriced=True)
    return _Place(_route(one.server, model))


def absence(one: AdoptedServer) -> str:
    """For clients that ask for its models: where it is, is an admin's to know."""
    url, reason = one.server.url, one.condition.reason
    for where in (url.address, url.host):
        reason = re.sub(rf"(?<![\w.-]){re.escape(where)}(?![\w.-])", "its address", reason)
    return f"the server {one.server.name} cannot be used: {reason}"


def _route(server: Server, model: str) -> Route:
    return Route(
        key=ReplicaKey(model_name(server.name, model), 0),
        node=NodeId(""),
        node_name=server.name,
        endpoint=ReplicaEndpoint(
            server.url.address,
            _PROTOCOLS[server.kind],
            server.url.path,
            server.key,
            server=server.name,
            model=model,
            encrypted=server.url.encrypted,
            versioned=server.url.versioned,
        ),
        change=server.change,
        parallel=server.parallel,
        price=server.price(model),
        server=server.name,
        paid=server.paid,
    )


@lru_cache(_MODELS_KNOWN_MAX)
def _config(name: str) -> ModelConfig:
    """The same one each time, so that a request sees that its model has not changed."""
    return ModelConfig(name=name)


def servers_listed(configs: Iterable[ModelConfig], server: str) -> list[str]:
    """The models that list this server as an upstream."""
    return sorted(
        config.id for config in configs if any(name.partition("/")[0] == server for name in config.upstreams)
    )
