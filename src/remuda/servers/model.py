"""What is kept of a server that runs without us, and how it was last seen to be. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import urlsplit

from remuda.core.errors import Invalid, PeerFailed
from remuda.core.prices import Money, TokenPrice

NAME_CHARS_MAX: Final = 40
MODELS_MAX: Final = 2000  # Of one server; more are left out, which its reason says.
EVERY_OTHER: Final = "*"  # In prices: each model that has no price of its own.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")
_VERSION: Final = re.compile(r"v\d+(?:alpha|beta)?\d*")
_PORTS: Final = {"http": 80, "https": 443}


class ServerKind(StrEnum):
    """Whose API it speaks."""

    OPENAI = "openai"
    OLLAMA = "ollama"
    ANTHROPIC = "anthropic"


class ServerUnusable(PeerFailed):
    """It does not answer, or not as a server of its kind does; the message says why."""

    code = "server_unusable"


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """Where a server is, without the /v1 at the end: each kind of request has its path. A path that names
    another version of an API, such as /v1beta/openai, is whole: nothing is added to it but what is asked."""

    scheme: str
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if _PORTS[self.scheme] == self.port else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def encrypted(self) -> bool:
        return self.scheme == "https"

    @property
    def versioned(self) -> bool:
        return _is_versioned(self.path)

    def api(self, path: str) -> str:
        """Where this path of an API is, which begins with /v1."""
        return f"{self}{path.removeprefix('/v1') if self.versioned else path}"


def parse_url(text: str) -> ServerUrl:
    """Of an address as people write it: without a scheme it is http. Invalid for anything else."""
    written = text.strip()
    try:
        parts = urlsplit(written if "://" in written else f"http://{written}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _no_url(text) from None
    if parts.scheme not in _PORTS or not host or not written.isascii() or not written.isprintable():
        raise _no_url(text)
    if parts.username is not None or parts.password is not None:
        raise Invalid("the address must not hold a password", hint="give the key by --key", param="url")
    if parts.query or parts.fragment or " " in written:
        raise _no_url(text)
    path = parts.path.rstrip("/")
    if not _is_versioned(shorter := path.removesuffix("/v1").rstrip("/")):
        path = shorter
    return ServerUrl(parts.scheme, host, port or _PORTS[parts.scheme], path)


def _is_versioned(path: str) -> bool:
    return any(_VERSION.fullmatch(part) for part in path.split("/"))


def _no_url(text: str) -> Invalid:
    return Invalid(
        f"{text[:80]!r} is not the address of a server",
        hint="write it as http://nas:11434 or https://api.example.com/v1",
        param="url",
    )


def check_name(name: str) -> None:
    """Invalid for a name that could not stand before a model's."""
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name[:60]!r} is no name for a server",
            hint=f"up to {NAME_CHARS_MAX} lower-case letters, digits, dots, dashes and underscores",
            param="name",
        )


def name_from(url: ServerUrl) -> str:
    """For a server that was given none: the first part of its host, unless that says nothing."""
    labels = [label for label in url.host.lower().split(".") if label not in ("api", "www")]
    numeric = ":" in url.host or url.host.replace(".", "").isdigit()
    plain = re.sub(r"[^a-z0-9-]+", "-", url.host if numeric else labels[0] if labels else "").strip("-")
    return (f"{plain}-{url.port}" if numeric or plain == "localhost" else plain)[:NAME_CHARS_MAX] or "server"


@dataclass(frozen=True, slots=True)
class Server:
    """One that was adopted. `paid`: its tokens cost money, which comes out of its monthly budget."""

    name: str
    kind: ServerKind
    url: ServerUrl
    key: str = field(default="", repr=False)
    paid: bool = False
    prices: Mapping[str, TokenPrice] = field(default_factory=lambda: MappingProxyType({}))
    budget: Money = 0  # A month, in the currency of the prices.
    parallel: int = 0  # Requests that it is sent at once, by each frontend and all others; 0: no bound.
    max_tokens: int = 0  # Asked for where a request has no limit of its own; 0: nothing is added.
    change: int = 0  # Grows with every edit.

    def price(self, model: str) -> TokenPrice | None:
        return self.prices.get(model) or self.prices.get(EVERY_OTHER)


def check_server(server: Server) -> None:
    """Invalid for one whose costs nothing would bound."""
    check_name(server.name)
    if server.paid and not server.budget:
        raise Invalid(
            f"{server.name} has prices but no budget, and nothing would bound what it costs",
            hint="say how much a month may cost, as in --budget 20",
            param="budget",
        )
    if server.paid and not server.prices:
        raise Invalid(
            f"{server.name} has a budget but no prices, so that nothing can be counted",
            hint="say what a million tokens cost, read and written, as in --price 2.5/10",
            param="prices",
        )


@dataclass(frozen=True, slots=True)
class Condition:
    """How a server was last seen to be, by one frontend. An empty reason: it answers."""

    models: tuple[str, ...] = ()  # By their names there, as last listed.
    reason: str = "it was not asked yet"
    since: datetime | None = None  # Of this state.
    asked_at: datetime | None = None
    misses: int = 0  # Looks that it has not answered, one after the other.

    @property
    def up(self) -> bool:
        return not self.reason


_MISSES_MAX: Final = 2  # A slow answer is no absence: a server that computes may be late once.


def answered(before: Condition, models: tuple[str, ...], now: datetime) -> Condition:
    since = before.since if before.up and before.since is not None else now
    return Condition(models[:MODELS_MAX], "", since, now)


def missed(before: Condition, reason: str, now: datetime, *, slow: bool) -> Condition:
    """After a look that brought nothing. `slow`: it did not answer in time, so it may just be busy."""
    misses = before.misses + 1
    if before.up and slow and misses < _MISSES_MAX:
        return Condition(before.models, "", before.since, now, misses)
    since = now if before.up or before.since is None else before.since
    return Condition(before.models, reason, since, now, misses)


@dataclass(frozen=True, slots=True)
class AdoptedServer:
    server: Server
    condition: Condition


class ServerStore(Protocol):
    async def servers(self) -> tuple[Server, ...]:
        """By name."""
        ...

    async def add_server(self, server: Server) -> Server:
        """Conflict when there is one of that name."""
        ...

    async def edit_server(self, server: Server) -> Server:
        """In place of the one that `server.change` was read of; Conflict when it was edited since, NotFound
        when it is gone."""
        ...

    async def remove_server(self, name: str) -> Server:
        """NotFound when there is none."""
        ...
