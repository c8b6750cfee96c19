"""How many replicas of models are wanted, and where, as admins declare it. Fields of the contract first."""

from typing import Annotated

from pydantic import Field, RootModel

from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, Count, Many, Message, Number, Timestamp

LABELS_MAX = 32
REPLICAS_MAX = 10_000  # Of one model.
_Replicas = Annotated[Count, Field(le=REPLICAS_MAX)]
_Threshold = Annotated[Number, Field(ge=0)]


class SchedulingBody(Message):
    """Admin to frontend: what is wanted of one model's replicas. What the contract keeps when it is left out,
    and what is ours, may be left out."""

    model_name: Annotated[str, Field(min_length=1, max_length=1024)]
    node_selector: Annotated[dict[str, str], Field(max_length=LABELS_MAX)] = Field(default_factory=dict)
    min_replicas: _Replicas = 0
    max_replicas: _Replicas = 0  # 0: no limit but what nodes take.
    spread_all: bool = False  # One on each node that matches.
    route_policy: str | None = None
    balance_abs_threshold: Count | None = None
    balance_rel_threshold: _Threshold | None = None
    min_prefix_match: _Threshold | None = None
    # Ours.
    pinned: bool | None = None
    keep_alive: str | None = None  # Empty: as configured.


class SchedulingRow(Message):
    """Frontend to admin: one that is stored."""

    id: Count = 0
    model_name: str = ""
    node_selector: str = ""  # A JSON object as text.
    min_replicas: Count = 0
    max_replicas: Count = 0
    spread_all: bool = False
    route_policy: str = ""
    balance_abs_threshold: Count = 0
    balance_rel_threshold: Number = 0.0
    min_prefix_match: Number = 0.0
    unsatisfiable_until: Annotated[Timestamp | None, OMIT_NONE] = None
    unsatisfiable_ticks: Count = 0
    created_at: Annotated[Timestamp | None, OMIT_NONE] = None
    updated_at: Annotated[Timestamp | None, OMIT_NONE] = None
    # Ours.
    pinned: Annotated[bool | None, OMIT_NONE] = None
    keep_alive: Annotated[str, OMIT_EMPTY] = ""
    unsatisfiable_why: Annotated[str, OMIT_EMPTY] = ""
    warning: Annotated[str, OMIT_EMPTY] = ""


class SchedulingRows(RootModel[tuple[SchedulingRow, ...]]):
    """Frontend to admin: all that are stored."""


class WantedReplicas(Message):
    """How many replicas one model is to have, where, for how long, and by whose word. Ours."""

    origin: str  # `declared`: by an admin; `configured`: in its YAML; `default`: nowhere.
    wanted: str  # In words.
    min_replicas: Count = 0
    max_replicas: Count = 0
    every_node: Annotated[bool, OMIT_EMPTY] = False
    selector: Annotated[dict[str, str], OMIT_EMPTY] = Field(default_factory=dict)
    pinned: Annotated[bool, OMIT_EMPTY] = False
    keep_alive: Annotated[str, OMIT_EMPTY] = ""  # Empty: the frontend's.


class ModelScheduled(WantedReplicas):
    """How one model is scheduled, and how it stands. Ours."""

    model: str
    loaded: Count = 0  # That count: `not_counted` tells of the others, by node and why.
    on_their_way: Count = 0
    waiting: Annotated[str, OMIT_EMPTY] = ""  # Why there are fewer than wanted, and when it is tried again.
    absent: Annotated[bool, OMIT_EMPTY] = False  # There is no such model, or not yet.
    not_counted: Annotated[Many[str], OMIT_EMPTY] = ()


class ModelsScheduled(Message):
    """Frontend to admin."""

    models: Many[ModelScheduled] = ()
