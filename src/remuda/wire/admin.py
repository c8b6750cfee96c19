"""What admins read and write beyond the contract: API keys, history, why a frontend is not ready."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, RootModel

from remuda.core import limits
from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, SECRET, WHOLE, Many, Message, Timestamp
from remuda.wire.nodes import NodeView


def _key_name(text: str) -> str:
    if not text.strip() or len(text) > limits.KEY_NAME_CHARS_MAX or not text.isprintable():
        raise ValueError(f"must be 1 to {limits.KEY_NAME_CHARS_MAX} printable characters")
    return text.strip()


def _model_name(text: str) -> str:
    if not text or len(text) > limits.MODEL_NAME_CHARS_MAX or not text.isprintable():
        raise ValueError(f"must be 1 to {limits.MODEL_NAME_CHARS_MAX} printable characters")
    return text


KeyLimit = Annotated[int, Field(ge=0, le=limits.KEY_LIMIT_MAX), WHOLE]
"""Of requests or tokens. 0: none."""
KeyWeight = Annotated[int, Field(ge=1, le=limits.KEY_WEIGHT_MAX), WHOLE]
KeyModels = Annotated[
    Many[Annotated[str, AfterValidator(_model_name)]], Field(max_length=limits.KEY_MODELS_MAX)
]


class KeyRequest(Message):
    """Admin to frontend: a new API key. `models`: those it may ask for; none named: all. A limit of 0 is
    none. `weight`: its share of replicas while requests of several keys wait. `batch`: it gets what others
    leave idle. `may_route`: its requests may say which nodes they prefer or avoid."""

    name: Annotated[str, AfterValidator(_key_name)]
    scope: Literal["inference", "read", "admin"] = "inference"
    models: KeyModels = ()
    requests_per_minute: KeyLimit = 0
    tokens_per_minute: KeyLimit = 0
    concurrent_requests: KeyLimit = 0
    tokens_per_day: KeyLimit = 0
    tokens_per_month: KeyLimit = 0
    expires_at: Timestamp | None = None
    weight: KeyWeight = 1
    batch: bool = False
    may_route: bool = False


class KeyPatch(Message):
    """Admin to frontend: what is to be different about a key; what is left out stays as it is."""

    models: KeyModels | None = None
    requests_per_minute: KeyLimit | None = None
    tokens_per_minute: KeyLimit | None = None
    concurrent_requests: KeyLimit | None = None
    tokens_per_day: KeyLimit | None = None
    tokens_per_month: KeyLimit | None = None
    expires_at: Timestamp | None = None
    never_expires: bool | None = None  # True takes the expiry away.
    weight: KeyWeight | None = None
    batch: bool | None = None
    may_route: bool | None = None
    paused: bool | None = None


class JoinLines(Message):
    """Frontend to admin: what to run on another machine so that it joins. Each line holds the token."""

    url: str
    line: Annotated[str, SECRET]
    uvx_line: Annotated[str, SECRET]
    this_machine_only: Annotated[bool, OMIT_EMPTY] = False  # No other machine can reach the frontend.


class KeyView(Message):
    """Frontend to admin: what is kept of a key."""

    id: str
    name: str = ""
    scope: str = ""
    hint: str = ""  # The key's first characters.
    created_at: Timestamp
    models: Annotated[Many[str], OMIT_EMPTY] = ()  # It may ask for these alone.
    state: Literal["active", "paused", "expired"] = "active"
    requests_per_minute: Annotated[int, OMIT_EMPTY] = 0  # A limit of 0 is none.
    tokens_per_minute: Annotated[int, OMIT_EMPTY] = 0
    concurrent_requests: Annotated[int, OMIT_EMPTY] = 0
    tokens_per_day: Annotated[int, OMIT_EMPTY] = 0
    tokens_per_month: Annotated[int, OMIT_EMPTY] = 0
    expires_at: Annotated[Timestamp | None, OMIT_NONE] = None
    weight: int = 1
    batch: Annotated[bool, OMIT_EMPTY] = False
    may_route: Annotated[bool, OMIT_EMPTY] = False
    last_used_at: Annotated[Timestamp | None, OMIT_NONE] = None  # To within a few seconds.
    key: Annotated[str, OMIT_EMPTY, SECRET] = ""  # Only in the answer that made it.
    warnings: Annotated[Many[str], OMIT_EMPTY] = ()  # Likewise.


class KeyViews(RootModel[list[KeyView]]):
    """All active keys."""


class HistoryItem(Message):
    """Frontend to admin: something that was done to a node."""

    at: Timestamp
    node_id: str = ""  # Empty: the node is no more.
    node_name: str = ""
    event: str = ""
    detail: str = ""
    actor: str = ""


class History(RootModel[list[HistoryItem]]):
    """What was done, newest first."""


class NodeViews(RootModel[list[NodeView]]):
    """All nodes, by name."""


FrontendPart = Literal["store", "bus", "frontend"]


class UnreadyPart(Message):
    """Of this part of a frontend, why it cannot be used."""

    part: FrontendPart = "frontend"
    reason: str
    code: str = ""


class Unready(Message):
    """Frontend to all: why it cannot do its work. `parts` have the same reasons, one by one."""

    status: str = "unready"
    reason: str
    code: str = ""  # Of the first part.
    parts: Many[UnreadyPart] = ()
