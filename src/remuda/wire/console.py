"""What the web console reads and writes beyond the contract: the stream of everything, and sign-in. Ours.

Entities of the stream are those of the lists, without what only a page of their own shows, and without what
changes by itself from second to second: each change of one is sent whole.
"""

from typing import Annotated, Literal

from pydantic import Field

from remuda.wire.admin import KeyView
from remuda.wire.codec import GO_ZERO_TIME, OMIT_EMPTY, SECRET, Count, Int64, Many, Message, Number, Timestamp
from remuda.wire.nodes import NodeView
from remuda.wire.operations import OpView
from remuda.wire.servers import ServerView
from remuda.wire.serving import ModelItem, ReplicaView

_OMIT_NO_TIME = Field(exclude_if=lambda value: value == GO_ZERO_TIME)


class NodeEntity(NodeView):
    """A node, as in `GET /api/nodes`. Free memory and disk are rounded down to 16 MiB."""

    # Of a node that is not heard well: when it was heard last. A healthy one was heard lately, by definition.
    last_heartbeat: Annotated[Timestamp, _OMIT_NO_TIME] = GO_ZERO_TIME
    updated_at: Annotated[Timestamp, _OMIT_NO_TIME] = GO_ZERO_TIME  # Never here.


class ReplicaEntity(ReplicaView):
    """A replica, as in `GET /api/replicas`."""

    id: str  # `NODE_ID/MODEL#INDEX`.


class ModelEntity(ModelItem):
    """A model, as in `GET /api/models`, without its replicas and without long texts."""

    id: str  # Its name.
    replicas: Annotated[Many[ReplicaView], OMIT_EMPTY] = ()  # Never here: they are a collection of their own.


class OperationEntity(OpView):
    """An operation, as in `GET /api/ops`; one that is under way with its steps, but not their attempts. Of
    many steps only those are here that are at work or have failed; `whole` is then false."""


class ServerEntity(ServerView):
    """A server that runs without us, as in `GET /api/servers`, without its models."""

    id: str  # Its name.
    asked: bool = False  # This frontend has asked it; when it did last is never here.
    models_total: Count = 0
    models_refused: Annotated[Count, OMIT_EMPTY] = 0  # To which no request goes now.
    in_flight: Count = 0


class KeyEntity(KeyView):
    """A key, as in `GET /api/keys`. When it was used last is given to the minute."""


AttentionLevel = Literal["warning", "problem"]


class RemedyCall(Message):
    """A request that would solve it, by a label for its button."""

    label: str
    method: str
    path: str
    body: Annotated[dict[str, str], OMIT_EMPTY] = {}


class AttentionItem(Message):
    """Something that needs a person."""

    id: str  # The same for as long as it is so.
    code: str
    level: AttentionLevel
    entity: str  # `node`, `operation`, `backend`, `model` or `frontend`.
    entity_id: str
    entity_name: str = ""
    message: str
    action: Annotated[RemedyCall | None, OMIT_EMPTY] = None


class AttentionItems(Message):
    """Frontend to console: everything that needs a person, problems first."""

    attention: Many[AttentionItem] = ()


class ConsoleSnapshot(Message):
    """Frontend to console, event `snapshot`: forget what you know, this is everything."""

    nodes: Many[NodeEntity] = ()
    models: Many[ModelEntity] = ()
    replicas: Many[ReplicaEntity] = ()
    operations: Many[OperationEntity] = ()
    servers: Many[ServerEntity] = ()
    keys: Many[KeyEntity] = ()
    attention: Many[AttentionItem] = ()


class NodeChanges(Message):
    set: Annotated[Many[NodeEntity], OMIT_EMPTY] = ()
    gone: Annotated[Many[str], OMIT_EMPTY] = ()  # Ids.


class ModelChanges(Message):
    set: Annotated[Many[ModelEntity], OMIT_EMPTY] = ()
    gone: Annotated[Many[str], OMIT_EMPTY] = ()


class ReplicaChanges(Message):
    set: Annotated[Many[ReplicaEntity], OMIT_EMPTY] = ()
    gone: Annotated[Many[str], OMIT_EMPTY] = ()


class OperationChanges(Message):
    set: Annotated[Many[OperationEntity], OMIT_EMPTY] = ()
    gone: Annotated[Many[str], OMIT_EMPTY] = ()


class ServerChanges(Message):
    set: Annotated[Many[ServerEntity], OMIT_EMPTY] = ()
    gone: Annotated[Many[str], OMIT_EMPTY] = ()


class KeyChanges(Message):
    set: Annotated[Many[KeyEntity], OMIT_EMPTY] = ()
    gone: Annotated[Many[str], OMIT_EMPTY] = ()


class AttentionChanges(Message):
    set: Annotated[Many[AttentionItem], OMIT_EMPTY] = ()
    gone: Annotated[Many[str], OMIT_EMPTY] = ()


class ConsoleChange(Message):
    """Frontend to console, event `change`: the entities that have changed, each whole. Only collections with
    a change are here; none, where a stream was continued and nothing has changed meanwhile."""

    nodes: Annotated[NodeChanges | None, OMIT_EMPTY] = None
    models: Annotated[ModelChanges | None, OMIT_EMPTY] = None
    replicas: Annotated[ReplicaChanges | None, OMIT_EMPTY] = None
    operations: Annotated[OperationChanges | None, OMIT_EMPTY] = None
    servers: Annotated[ServerChanges | None, OMIT_EMPTY] = None
    keys: Annotated[KeyChanges | None, OMIT_EMPTY] = None
    attention: Annotated[AttentionChanges | None, OMIT_EMPTY] = None


class ConsoleTrouble(Message):
    """Frontend to console, event `trouble`: what is shown may be out of date, until an event `well`."""

    code: str
    message: str


class SettingItem(Message):
    """One setting of the frontend that answers; of a secret only whether it is set."""

    setting: str
    value: str = ""  # Empty: none.
    origin: str = ""  # Where it comes from, in words.
    help: str = ""
    note: Annotated[str, OMIT_EMPTY] = ""


class SettingItems(Message):
    frontend: str
    settings: Many[SettingItem] = ()


class ChartSeries(Message):
    """Frontend to console: the last hour in steps of `step_s`, without the step that is not over. Each list
    has one value per time, null where it is not known."""

    step_s: Number = 10.0
    times: Many[Int64] = ()  # Seconds since 1970 at which the steps begin.
    # `used_ram`, `used_vram`, `free_disk` (of model files) in bytes; `in_flight`, on average; `tokens_per_s`.
    series: dict[str, Many[Number | None]] = {}
    limits: dict[str, Many[Number | None]] = {}  # The totals that values of the same name are a part of.


class SignIn(Message):
    """Console to frontend: an API key, for a session cookie."""

    key: Annotated[str, SECRET]


class SessionView(Message):
    """Frontend to console: whether it is signed in, or need not be."""

    authenticated: bool
    scope: Annotated[Literal["", "admin", "read", "inference"], OMIT_EMPTY] = ""
    name: Annotated[str, OMIT_EMPTY] = ""  # The key's.
    loopback: bool = False  # This frontend serves its own machine alone, and asks for no keys.
    version: str = ""
    frontend: str = ""  # The id of the frontend that answers.
