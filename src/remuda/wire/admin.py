"""What admins read and write beyond the contract: API keys, history, why a frontend is not ready."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, RootModel

from remuda.core import limits
from remuda.wire.codec import OMIT_EMPTY, SECRET, Many, Message, Timestamp
from remuda.wire.nodes import NodeView


def _key_name(text: str) -> str:
    if not text.strip() or len(text) > limits.KEY_NAME_CHARS_MAX or not text.isprintable():
        raise ValueError(f"must be 1 to {limits.KEY_NAME_CHARS_MAX} printable characters")
    return text.strip()


def _model_name(text: str) -> str:
    if not text or len(text) > limits.MODEL_NAME_CHARS_MAX or not text.isprintable():
        raise ValueError(f"must be 1 to {limits.MODEL_NAME_CHARS_MAX} printable characters")
    return text


class KeyRequest(Message):
    """Admin to frontend: a new API key. `models`: those it may ask for; none named: all."""

    name: Annotated[str, AfterValidator(_key_name)]
    scope: Literal["inference", "read", "admin"] = "inference"
    models: Annotated[
        Many[Annotated[str, AfterValidator(_model_name)]], Field(max_length=limits.KEY_MODELS_MAX)
    ] = ()


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
