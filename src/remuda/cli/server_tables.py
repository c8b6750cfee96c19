"""Servers that run without us, as people read of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remuda.cli.render import Column
    from remuda.wire.servers import FoundServer, ServerView

_NOT_KNOWN = "-"


def server_columns(servers: Sequence["ServerView"]) -> list["Column"]:
    from remuda.cli.render import Column

    return [
        Column("NAME", [one.name for one in servers]),
        Column("STATE", [state(one) for one in servers]),
        Column("KIND", [one.kind for one in servers], needed=1),
        Column("MODELS", [_models(one) for one in servers], right=True),
        Column("SPENT THIS MONTH", [_spent(one) for one in servers], needed=2),
        Column("URL", [one.url for one in servers], needed=3),
    ]


def state(server: "ServerView") -> str:
    return "answers" if server.up else f"absent: {server.reason}"


def _models(server: "ServerView") -> str:
    if not server.up and not server.models:
        return _NOT_KNOWN
    return str(len(server.models))


def _spent(server: "ServerView") -> str:
    return f"{server.spent} of {server.budget}" if server.paid else "free"


def server_facts(server: "ServerView") -> list[tuple[str, str]]:
    from remuda.cli.render import local

    facts = [
        ("Name", server.name),
        ("URL", server.url),
        ("Kind", server.kind),
        ("Key", "kept, and never shown" if server.has_key else "none"),
        ("State", state(server) + (f", since {local(server.since)}" if server.since else "")),
        ("Asked last", "not yet" if server.asked_at is None else local(server.asked_at)),
        ("Requests at once", str(server.parallel or "no bound")),
        ("Adds max_tokens", str(server.max_tokens or "nothing")),
    ]
    if server.paid:
        prices = "; ".join(f"{_which(model)} {price}" for model, price in sorted(server.prices.items()))
        facts += [
            ("Prices", f"{prices} (a million tokens, read/written)"),
            ("Budget", f"{server.budget} a month (UTC)"),
            ("Spent", f"{server.spent} this month; {server.committed} with what is reserved"),
        ]
    else:
        facts.append(("Prices", "none: its tokens cost nothing"))
    return facts


def _which(model: str) -> str:
    return "each model" if model == "*" else model


def model_columns(server: "ServerView") -> list["Column"]:
    from remuda.cli.render import Column

    models = server.models
    return [
        Column("MODEL", [one.name for one in models]),
        Column("PRICE", [one.price or _NOT_KNOWN for one in models], needed=1),
        Column("IN FLIGHT", [str(one.in_flight) for one in models], right=True),
        Column("WHY NOT USED", [one.reason or _NOT_KNOWN for one in models], needed=2),
    ]


def found_columns(found: Sequence["FoundServer"]) -> list["Column"]:
    from remuda.cli.render import Column

    return [
        Column("URL", [one.url for one in found]),
        Column("KIND", [one.kind or f"{one.usual}?" for one in found]),
        Column("MODELS", [str(len(one.models)) if one.kind else _NOT_KNOWN for one in found], right=True),
        Column("ADOPTED AS", [one.adopted or _NOT_KNOWN for one in found]),
        Column("NOTE", [one.reason or _NOT_KNOWN for one in found], needed=1),
    ]
