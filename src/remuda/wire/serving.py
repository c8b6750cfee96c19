"""Models and their replicas, as admins see and steer them, and how far a load is. Ours, but for the loading
object."""

from enum import IntEnum
from typing import Annotated

from pydantic import Field, JsonValue

from remuda.wire.codec import (
    OMIT_EMPTY,
    OMIT_NONE,
    Count,
    Int64,
    Many,
    Message,
    Number,
    OptionalMessage,
    Timestamp,
    Uint64,
)
from remuda.wire.nodes import NodeErrorDetail
from remuda.wire.operations import OpView
from remuda.wire.scheduling import WantedReplicas


class ReplicaView(Message):
    """One replica of a model."""

    model: str
    index: Count = 0
    node_id: str = ""
    node: str = ""  # Its name.
    state: str = ""  # staging, loading, loaded or unloading; unreachable: it was loaded when its node went.
    backend: str = ""
    address: str = ""
    protocol: str = ""
    in_flight: Count = 0  # Over all frontends, by what they said last.
    parallel: Count = 0  # How many requests it takes at once; 0: not known.
    memory_bytes: Uint64 = 0  # That it was measured to take; else what is expected of it. 0: not known.
    estimated: Annotated[bool, OMIT_EMPTY] = False  # `memory_bytes` was computed, and not measured.
    # What no other model is given, of one in RAM: at least what is expected, for it fills. 0: not told apart.
    set_aside_bytes: Annotated[Uint64, OMIT_EMPTY] = 0
    in_vram: bool = False
    gpus: Annotated[
        Many[Count], OMIT_EMPTY
    ] = ()  # That it is given, of several; empty: all, or the only one.
    op_id: str = ""  # The operation that loaded it.
    why: Annotated[str, OMIT_EMPTY] = ""  # For what reason it is unloading, unreachable or not used.
    # While its node is silent: when the node was last heard. What has become of the replica is not known.
    unconfirmed_since: Annotated[Timestamp | None, OMIT_NONE] = None
    last_used: Annotated[Timestamp | None, OMIT_NONE] = None
    unloads_at: Annotated[Timestamp | None, OMIT_NONE] = None  # If it is not used until then.


class ReplicaViews(Message):
    replicas: Many[ReplicaView] = ()


class ModelFileView(Message):
    """A file that a model's configuration has fetched before it is loaded."""

    path: str  # Below the models folder.
    source: str = ""
    sha256: Annotated[str, OMIT_EMPTY] = ""


class ModelDetails(Message):
    """What a model's files say of themselves, as far as this frontend has them, and what belongs to it."""

    format: Annotated[str, OMIT_EMPTY] = ""  # `gguf` or `safetensors`; empty: the files are not here.
    architecture: Annotated[str, OMIT_EMPTY] = ""
    parameters: Annotated[Uint64, OMIT_EMPTY] = 0
    precision: Annotated[str, OMIT_EMPTY] = ""  # Its quantisation, or the type of its numbers.
    context_length: Annotated[Uint64, OMIT_EMPTY] = 0  # Tokens that it was trained for.
    layers: Annotated[Uint64, OMIT_EMPTY] = 0
    embedding_length: Annotated[Uint64, OMIT_EMPTY] = 0
    vocabulary: Annotated[Uint64, OMIT_EMPTY] = 0
    experts: Annotated[Uint64, OMIT_EMPTY] = 0
    chat_template: bool = False  # It brings one of its own.
    vision: bool = False  # It is configured to see.
    projector: Annotated[str, OMIT_EMPTY] = ""  # One that lies beside it and is not configured.
    files: Annotated[Many[str], OMIT_EMPTY] = ()  # Names of those that its weights are in.
    downloads: Annotated[Many[ModelFileView], OMIT_EMPTY] = ()  # `download_files` of its configuration.
    artifacts: Annotated[Many[ModelFileView], OMIT_EMPTY] = ()  # The same of its `artifacts`.
    unknown_keys: Annotated[Many[str], OMIT_EMPTY] = ()
    # Of a model that the fleet has installed.
    source: Annotated[str, OMIT_EMPTY] = ""
    source_revision: Annotated[str, OMIT_EMPTY] = ""  # The commit, digest or version that it stood for.
    choice: Annotated[str, OMIT_EMPTY] = ""  # Which of several variants was taken, and why.
    notes: Annotated[Many[str], OMIT_EMPTY] = ()  # What else was to be known about the source.
    installed_files: Annotated[Many[ModelFileView], OMIT_EMPTY] = ()  # With their checksums.


class ModelItem(Message):
    """A configured model."""

    name: str
    backend: str = ""
    file: str = ""
    alias: Annotated[str, OMIT_EMPTY] = ""  # A second name of the model of this name, and nothing else.
    description: Annotated[str, OMIT_EMPTY] = ""
    usecases: Many[str] = ()
    revision: str = ""
    origin: str = ""  # `added`, or the file that describes it.
    size_bytes: Uint64 = 0  # Of its file; 0: not known.
    memory_bytes: Uint64 = 0  # Once loaded; 0: not known.
    estimated: Annotated[bool, OMIT_EMPTY] = False  # `memory_bytes` was computed, and not measured.
    context_size: Count = 0  # Tokens it is loaded for; 0: not known without its file.
    pinned: Annotated[bool, OMIT_EMPTY] = False  # Never unloaded, neither when idle nor to make room.
    nodes_with_files: Many[str] = ()
    # Whether the frontend that answers has its file, or another one keeps it; none: it does not tell.
    on_frontend: Annotated[bool | None, OMIT_NONE] = None
    # Object storage has all its files, as the frontend that answers has seen within a minute or so.
    in_storage: Annotated[bool, OMIT_EMPTY] = False
    replicas: Many[ReplicaView] = ()
    # Why it could not be loaded: its last load failed, or, asked for alone, no node could take it.
    problem: Annotated[str, OMIT_EMPTY] = ""
    # One line for each reason in `problem`, which names only some of them.
    problem_details: Annotated[Many[str], OMIT_EMPTY] = ()
    failed_at: Annotated[Timestamp | None, OMIT_NONE] = None  # When that load failed.
    # The operation that fetches what its configuration names; it cannot be loaded before.
    fetching: Annotated[str, OMIT_EMPTY] = ""
    source: Annotated[str, OMIT_EMPTY] = ""  # Of one that was installed.
    quantisation: Annotated[str, OMIT_EMPTY] = ""  # As far as its file tells.
    storage: Annotated[str, OMIT_EMPTY] = ""  # What object storage lacks of its files, in words.
    # No node has its backend, and no gallery offers it.
    backend_unknown: Annotated[bool, OMIT_EMPTY] = False
    wanted: Annotated[WantedReplicas | None, OMIT_NONE] = None  # None: an alias, or from an older frontend.
    details: Annotated[ModelDetails | None, OMIT_NONE] = None  # Where it is asked for alone.


class NodeFitView(Message):
    """Whether one node could take a model now, and what it has."""

    node_id: str
    node: str
    fits: bool
    # `fits`; `loaded`: it has as many replicas as it may have; `unusable`: drained, offline, or without the
    # backend; `refused`: for memory, disk, files or labels; `unknown`: the model's size is not known.
    outcome: str = ""
    reason: Annotated[str, OMIT_EMPTY] = ""  # Why not.
    waiting_helps: Annotated[bool, OMIT_EMPTY] = False  # It is only busy.
    in_vram: Annotated[bool, OMIT_EMPTY] = False  # Where it would be.
    unloads: Annotated[Many[str], OMIT_EMPTY] = ()  # Replicas (`model#index`) that would have to go first.
    copies: Annotated[str, OMIT_EMPTY] = ""  # What would be copied there first, and from whom.
    vram_total: Uint64 = 0  # After its budget.
    vram_free: Uint64 = 0
    ram_total: Uint64 = 0
    ram_free: Uint64 = 0
    disk_free: Annotated[Uint64 | None, OMIT_NONE] = None  # Left out: not known.


class ModelFits(Message):
    """What a model asks of a node, and for each node whether it could take it."""

    model: str
    size_bytes: Uint64 = 0  # Of its file; 0: not known.
    memory_bytes: Uint64 = 0  # Once loaded, computed; 0: not known.
    # Why the size is not known, of a model that is not installed; no node is then said to take it.
    size_unknown: Annotated[str, OMIT_EMPTY] = ""
    nodes: Many[NodeFitView] = ()


class PlannedStepView(Message):
    """Something that is done before the model answers."""

    action: str  # `unload`, `copy`, `install` or `load`.
    what: str = ""  # A replica (`model#index`), whom files come from, a backend, or the model.
    size_bytes: Annotated[Uint64, OMIT_EMPTY] = 0
    bytes_per_s: Annotated[Number | None, OMIT_NONE] = None  # As measured on that node.
    seconds: Annotated[Number | None, OMIT_NONE] = None  # Left out: not known.
    measured_elsewhere: Annotated[bool, OMIT_EMPTY] = False  # It was done on other nodes only.


class NotChosenView(Message):
    """Nodes that are not the one, for the same reason."""

    nodes: Many[str] = ()
    why: str = ""


class ModelPlan(Message):
    """What loading one more replica of a model would do now. Nothing is begun."""

    model: str
    node: str = ""  # Its name; empty: no node can take it now.
    node_id: Annotated[str, OMIT_EMPTY] = ""
    in_vram: bool = False
    memory_bytes: Uint64 = 0  # That would be set aside; 0: not known.
    steps: Many[PlannedStepView] = ()
    ready_seconds: Annotated[Number | None, OMIT_NONE] = None  # Left out: of some step it is not known.
    known_seconds: Number = 0.0  # Of the steps of which it is.
    tokens_per_s: Annotated[Number | None, OMIT_NONE] = None  # Left out: nothing like it was measured there.
    tokens_like: Annotated[str, OMIT_EMPTY] = ""  # The model that this was measured with, if it is another.
    waiting_helps: Annotated[bool, OMIT_EMPTY] = False  # No node can take it now, but one will by itself:
    waits_for: Annotated[str, OMIT_EMPTY] = ""  # which, and once what has happened.
    not_chosen: Many[NotChosenView] = ()


class UnusableModel(Message):
    """Something that is to describe a model, and cannot be used."""

    source: str  # A file in the models folder of the frontend that answers, or the name of a stored model.
    reason: str


class ModelItems(Message):
    models: Many[ModelItem] = ()
    unusable: Annotated[Many[UnusableModel], OMIT_EMPTY] = ()
    storage_trouble: Annotated[str, OMIT_EMPTY] = ""  # Why models are not put into the object storage.


class ModelAdd(Message):
    """Admin to frontend: have this model. `config` is its YAML."""

    config: Annotated[str, Field(max_length=1 << 20)]
    # Even where a file of this frontend's folder describes it: that file is then renamed.
    take_over: Annotated[bool, OMIT_EMPTY] = False
    only_new: Annotated[bool, OMIT_EMPTY] = False  # 409 where another model has this name.


class ModelText(Message):
    """Frontend to admin: a model's YAML, as it is stored."""

    name: str
    config: str
    etag: str  # Of this very text: a change sends it back as If-Match.
    origin: str = ""  # `added`, or the file that describes it.
    file: Annotated[str, OMIT_EMPTY] = ""  # In a frontend's models folder: the model is changed there.
    host: Annotated[str, OMIT_EMPTY] = ""  # The machine of that frontend.


class ModelTexts(Message):
    """What `remuda models export --json` prints."""

    models: Many[ModelText] = ()


class ModelReplace(Message):
    """Admin to frontend: have this YAML in place of the model's own."""

    config: Annotated[str, Field(max_length=1 << 20)]
    dry_run: Annotated[bool, OMIT_EMPTY] = False  # Only say what would come of it.


class ModelPatch(Message):
    """Admin to frontend: set these keys of a model. Maps are merged, null removes a key."""

    set: dict[str, JsonValue] = {}
    assign: Annotated[Many[str], Field(max_length=50)] = ()  # The same as `parameters.temperature=0.6`.


class ModelRename(Message):
    """Admin to frontend: another name for a model."""

    name: Annotated[str, Field(max_length=1024)]
    keep_alias: Annotated[bool, OMIT_EMPTY] = False  # The old name stays as another name for it.


class ModelRenamed(Message):
    """Frontend to admin: what has come along."""

    model: ModelItem
    unloads: Many[OpView] = ()  # Of replicas that go by the old name.
    keys: Many[str] = ()  # API keys that were limited to the old name, and are to the new one.
    aliases: Many[str] = ()  # Models that were other names for it, and still are.


class ModelEditConflict(Message):
    """Frontend to admin: the model was changed meanwhile."""

    error: NodeErrorDetail
    current: ModelText
    yours: str = ""  # What was sent.


class ModelAdded(Message):
    """Frontend to admin: how the model was understood."""

    model: ModelItem
    set_aside: Annotated[str, OMIT_EMPTY] = ""  # The path of the file that described it before.
    replaced: bool = False
    unchanged: Annotated[bool, OMIT_EMPTY] = False  # It was there already, just so.
    unknown_keys: Many[str] = ()
    warnings: Annotated[Many[str], OMIT_EMPTY] = ()
    no_node: Annotated[bool, OMIT_EMPTY] = False  # None can take it, as one of the warnings says.
    # Replicas that were loaded before the change are replaced: they answer what they have begun, and go.
    reloads: Annotated[bool, OMIT_EMPTY] = False
    # What fetches the files that its configuration names; None: nothing is to be fetched.
    operation: Annotated[OpView | None, OMIT_NONE] = None


class ModelsImported(Message):
    """What `remuda models import --json` prints."""

    models: Many[ModelAdded] = ()
    failed: Many[UnusableModel] = ()


class ModelInstallBody(Message):
    """Admin to frontend: have this model. `model` is a name in a gallery, or a source such as
    `hf://OWNER/REPOSITORY`."""

    model: Annotated[str, Field(min_length=1, max_length=2048)]
    name: Annotated[str, Field(max_length=1024)] = ""  # What it is to be called; empty: as it is known there.
    sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""  # Of its only file.
    variant: Annotated[str, Field(max_length=1024)] = ""  # Of a gallery's model; empty: one that fits a node.
    idempotency_key: Annotated[str, Field(max_length=200)] = ""
    context_size: Annotated[int, Field(ge=0, le=1 << 31)] = 0  # In tokens; 0: as its files say.
    if_missing: bool = False  # Where it is there already, nothing is looked for and nothing done.


class ModelThere(Message):
    """Frontend to admin: what was to be installed if it is missing is there, under this name."""

    model: str


class ModelRemoved(Message):
    """Frontend to admin: it is removed; and the operation by which its files go."""

    message: str
    operation: OpView
    # In the frontend's models folder, where a person has put it; no other model uses it.
    file_kept: Annotated[str, OMIT_EMPTY] = ""
    # Object storage had some of its files: the frontend that put them there removes them.
    in_storage: Annotated[bool, OMIT_EMPTY] = False


class ModelRemovalPlan(Message):
    """Frontend to admin: what removing a model would take. Nothing is begun."""

    model: str
    files: Many[str] = ()  # That go from frontends.
    bytes: Uint64 = 0  # Of those, as far as their sizes are known.
    nodes: Many[str] = ()  # Names of nodes that have files of it, from where those go that the fleet copied.
    nodes_kept: Annotated[Many[str], OMIT_EMPTY] = ()  # Of nodes whose files stay.
    file_kept: Annotated[str, OMIT_EMPTY] = ""  # Stays in the frontend's models folder.
    aliases: Annotated[Many[str], OMIT_EMPTY] = ()  # Models that are other names for it, and break.
    replicas: Count = 0  # Loaded, that are unloaded.


class ModelUnloadBody(OptionalMessage):
    """Admin to frontend: on which node; empty: on all."""

    node: str = ""


class ModelOps(Message):
    """Frontend to admin: the operations that do it."""

    operations: Many[OpView] = ()


class ModelLoaded(Message):
    """Frontend to admin: it is loaded on these nodes already, and no node can take one more replica."""

    model: str
    nodes: Many[str] = ()
    others: Annotated[Many[str], OMIT_EMPTY] = ()  # Why the nodes cannot take it that do not have it.


class LoadingView(Message):
    """How far a load is."""

    model: str
    state: str = ""
    node: Annotated[str, OMIT_EMPTY] = ""  # Its name.
    progress: Number = 0.0
    bytes_sent: Int64 = 0
    total_bytes: Int64 = 0
    file_index: Count = 0
    total_files: Count = 0
    eta_seconds: Annotated[Count | None, OMIT_NONE] = None


class BackendState(IntEnum):
    """As backends tell it themselves."""

    UNINITIALIZED = 0
    BUSY = 1
    READY = 2


class MemoryUsage(Message):
    total: Uint64 = 0
    breakdown: dict[str, int] = {}  # Bytes by node and number of the replica: `gpu-1#0`.


class ModelStatus(Message):
    """Frontend to admin, on LocalAI's own route: how a model is."""

    state: BackendState = BackendState.UNINITIALIZED
    memory: MemoryUsage = MemoryUsage()


class ModelNamed(Message):
    """Admin to frontend, on LocalAI's own routes: which model."""

    model: str
