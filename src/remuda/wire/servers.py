"""Servers that run without us, as admins add, change and see them. Ours."""

from typing import Annotated, Literal

from pydantic import Field

from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, SECRET, WHOLE, Count, Many, Message, Timestamp

_PRICES_MAX = 2000
_HOSTS_MAX = 64
ServerApi = Literal["openai", "ollama", "anthropic"]
Prices = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=300)], Annotated[str, Field(max_length=80)]],
    Field(max_length=_PRICES_MAX),
]
"""By model, what a million tokens cost, read and written, such as 2.5/10; under *, for all others."""
AmountText = Annotated[str, Field(max_length=40)]
"""Of money, as a decimal number, in the currency of the prices."""
Parallel = Annotated[int, Field(ge=0, le=100_000), WHOLE]
TokensMax = Annotated[int, Field(ge=0, lt=1 << 31), WHOLE]


class ServerRequest(Message):
    """Admin to frontend: adopt this server. `unseen`: though it does not answer now."""

    url: Annotated[str, Field(max_length=2000)]
    name: Annotated[str, Field(max_length=100)] = ""
    kind: ServerApi | Literal["auto"] = "auto"
    key: Annotated[str, Field(max_length=2000), SECRET] = ""
    prices: Prices = {}
    free: bool = False
    budget: AmountText = ""
    parallel: Parallel = 0
    max_tokens: TokensMax = 0
    unseen: bool = False


class ServerPatch(Message):
    """Admin to frontend: what is to be different about a server; what is left out stays. An empty key takes
    the key away."""

    url: Annotated[str, Field(max_length=2000)] | None = None
    kind: ServerApi | None = None
    key: Annotated[str | None, Field(max_length=2000), SECRET] = None
    prices: Prices | None = None
    free: bool | None = None
    budget: AmountText | None = None
    parallel: Parallel | None = None
    max_tokens: TokensMax | None = None
    unseen: bool = False


class ServerModel(Message):
    """One of a server's models. `name`: what requests call it."""

    name: str
    price: Annotated[str, OMIT_EMPTY] = ""
    in_flight: Count = 0
    reason: Annotated[str, OMIT_EMPTY] = ""  # Why no request goes there; empty: they do.


class ServerView(Message):
    """Frontend to admin. Its key is never shown. `up` and `reason` are as this frontend sees it."""

    name: str
    url: str
    kind: ServerApi
    has_key: bool = False
    up: bool = False
    reason: Annotated[str, OMIT_EMPTY] = ""
    since: Annotated[Timestamp | None, OMIT_NONE] = None
    asked_at: Annotated[Timestamp | None, OMIT_NONE] = None
    paid: bool = False
    prices: Annotated[dict[str, str], OMIT_EMPTY] = {}
    budget: Annotated[str, OMIT_EMPTY] = ""  # A month.
    spent: Annotated[str, OMIT_EMPTY] = ""  # In this month.
    committed: Annotated[str, OMIT_EMPTY] = ""  # Likewise, with what frontends hold to spend.
    parallel: Parallel = 0
    max_tokens: TokensMax = 0
    models: Many[ServerModel] = ()


class ServerViews(Message):
    servers: Many[ServerView] = ()


class ScanRequest(Message):
    """Admin to frontend: look for servers on these hosts, or on the frontend's own machine."""

    hosts: Annotated[Many[Annotated[str, Field(max_length=300)]], Field(max_length=_HOSTS_MAX)] = ()


class FoundServer(Message):
    """A server that a scan has found. `usual`: what usually listens at its port."""

    url: str
    usual: str
    kind: ServerApi | Literal[""] = ""
    models: Many[str] = ()
    reason: Annotated[str, OMIT_EMPTY] = ""  # Why its models are not known.
    adopted: Annotated[str, OMIT_EMPTY] = ""  # Under this name.


class FoundServers(Message):
    servers: Many[FoundServer] = ()
