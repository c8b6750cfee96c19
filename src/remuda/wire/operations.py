"""Operations on backends as admins see them: the contract's jobs and pages, and beside them our own."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, RootModel

from remuda.wire.backends import InstalledBackend
from remuda.wire.broadcasts import NodeProgress
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
from remuda.wire.nodes import NodeError


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable text")
    return text


Name = Annotated[str, Field(max_length=1024), AfterValidator(_printable)]
"""A backend's, a node's or a place's. Nothing has a longer one."""

# The contract: what admins send.


class NodeInstallBody(OptionalMessage):
    """Admin to frontend: install on one node. A backend, or a source outside the galleries."""

    backend: Name = ""
    backend_galleries: str = ""  # A JSON list as text, in place of the frontend's own.
    uri: Name = ""
    name: Name = ""
    alias: Name = ""


class NodeBackendBody(OptionalMessage):
    """Admin to frontend: the backend to upgrade or to delete on one node."""

    backend: Name = ""


class ExternalInstallBody(OptionalMessage):
    """Admin to frontend: install from outside the galleries, on every node that can."""

    uri: Name = ""
    name: Name = ""
    alias: Name = ""


class ApplyBody(OptionalMessage):
    """Admin to frontend: install on every node that can. The older form."""

    id: Name = ""
    force: bool = False  # Of no effect on workers.


# The contract: what they are answered.


class JobReply(Message):
    """Frontend to admin: the job that does it."""

    jobID: str  # The contract's spelling, here and below.
    uuid: Annotated[str, OMIT_EMPTY] = ""
    statusUrl: Annotated[str, OMIT_EMPTY] = ""
    message: str = ""


class ApplyReply(Message):
    """Frontend to admin: the same in the older form."""

    id: str
    status_url: str


class DoneReply(Message):
    """Frontend to admin: it is done."""

    success: bool = True
    message: Annotated[str, OMIT_EMPTY] = ""


class PlainError(Message):
    """Frontend to admin: why not."""

    error: str
    reason: str  # Ours, additive: the code of the error.


class ConcreteRefusal(Message):
    """Frontend to admin: a build for certain hardware does not go to every node; this backend may."""

    error: str
    code: str = "concrete_backend_requires_target"
    meta_alternative: str = ""


class InstallConflict(RootModel[ConcreteRefusal | NodeError]):
    """Either that, or any other reason why it cannot be done now."""


class JobView(Message):
    """Frontend to admin: how far a job is."""

    progress: Number = 0.0
    message: str = ""
    galleryElementName: str = ""
    processed: bool = False
    deletion: bool = False
    queued: bool = False
    error: Annotated[str, OMIT_EMPTY] = ""
    completed: Annotated[bool, OMIT_EMPTY] = False


class OperationItem(Message):
    """Frontend to admin: an operation that is under way, or has failed and was not dismissed yet."""

    id: str
    fullName: str = ""
    name: str = ""
    jobID: str = ""
    progress: Count = 0
    taskType: str = "Installation"
    isDeletion: bool = False
    isBackend: bool = True
    isQueued: bool = False
    cancellable: bool = False
    message: str = ""
    nodeID: Annotated[str, OMIT_EMPTY] = ""
    nodeName: Annotated[str, OMIT_EMPTY] = ""  # Of the files of a model that are on their way to a node.
    phase: Annotated[str, OMIT_EMPTY] = ""
    # Of staging always, of all else where there are any.
    currentBytes: Annotated[Int64 | None, OMIT_NONE] = None
    totalBytes: Annotated[Int64 | None, OMIT_NONE] = None
    error: Annotated[str, OMIT_EMPTY] = ""
    nodes: Many[NodeProgress] = ()


class OperationItems(Message):
    """Frontend to admin: all of them, those that are least far first."""

    operations: Many[OperationItem] = ()


class PastItem(Message):
    """Frontend to admin: an operation that is over."""

    id: str
    name: str = ""
    jobID: str = ""
    isBackend: bool = True
    nodeID: Annotated[str, OMIT_EMPTY] = ""
    taskType: Literal["installation", "deletion"] = "installation"
    outcome: Literal["completed", "failed", "cancelled"] = "completed"
    error: Annotated[str, OMIT_EMPTY] = ""
    startedAt: Timestamp
    finishedAt: Timestamp


class PastItems(Message):
    """Frontend to admin: finished operations, newest first."""

    operations: Many[PastItem] = ()


class InstalledBackends(RootModel[list[InstalledBackend] | None]):
    """What a node has installed; null when that is nothing."""


class NodeHolding(Message):
    """What one node has of a backend."""

    node_id: str
    node_name: str = ""
    node_status: str = ""
    version: str = ""
    digest: str = ""
    uri: str = ""
    installed_at: str = ""
    start_error: Annotated[str, OMIT_EMPTY] = ""  # Ours: why its last start failed; empty: it did not.


class BackendItem(Message):
    """A backend that galleries offer or nodes have."""

    id: str
    name: str = ""
    description: str = ""
    icon: str = ""
    license: str = ""
    urls: Many[str] = ()
    tags: Many[str] = ()
    gallery: str = ""
    installed: bool = False
    version: str = ""
    processing: bool = False
    jobID: str = ""
    isDeletion: bool = False
    isMeta: bool = False
    isAlias: bool = False
    isDevelopment: bool = False
    capabilities: dict[str, str] = {}
    metaBackendFor: str = ""
    nodes: Many[NodeHolding] | None = None


class BackendItems(RootModel[list[BackendItem]]):
    """Backends, in no pages."""


class InstalledItem(BackendItem):
    """A backend that nodes have, also in the words of a server's own list: `Metadata` is what the first of
    its nodes tells."""

    Name: str = ""
    RunFile: str = ""  # On each node another one.
    IsMeta: bool = False
    IsSystem: bool = False
    Metadata: InstalledBackend


class InstalledItems(RootModel[list[InstalledItem]]):
    """All of them, by name."""


class Repository(Message):
    name: str
    url: str


class BackendsPage(Message):
    """Frontend to admin: backends, and what is being done to them."""

    backends: Many[BackendItem] = ()
    repositories: Many[Repository] = ()
    allTags: Many[str] = ()
    processingBackends: dict[str, str] = {}
    taskTypes: dict[str, str] = {}
    availableBackends: Count = 0
    installedBackends: Count = 0
    currentPage: Count = 1
    totalPages: Count = 1
    prevPage: Count = 1
    nextPage: Count = 1
    systemCapability: str = ""
    preferDevelopmentBackends: bool = False


class DriftedNode(Message):
    """A node that has another version or other bytes than most."""

    node_id: str
    node_name: str = ""
    version: Annotated[str, OMIT_EMPTY] = ""
    digest: Annotated[str, OMIT_EMPTY] = ""


class UpgradeItem(Message):
    """A backend of which there is something newer, or of which nodes have different things."""

    backend_name: str
    installed_version: str = ""
    available_version: str = ""
    installed_digest: Annotated[str, OMIT_EMPTY] = ""
    available_digest: Annotated[str, OMIT_EMPTY] = ""
    node_drift: Annotated[Many[DriftedNode], OMIT_EMPTY] = ()


class UpgradeItems(RootModel[dict[str, UpgradeItem]]):
    """By the backend's name."""


class UncheckedItem(Message):
    """A gallery or registry that could not be asked whether it has anything newer."""

    source: str  # Such as `registry quay.io` or `gallery localai`.
    reason: str
    backends: Many[str] = ()  # Installed ones that it may have something newer of.
    checked_at: Annotated[Timestamp | None, OMIT_NONE] = None  # When it last answered, as far as is known.


class CheckedItem(Message):
    """A gallery or registry that was asked."""

    source: str
    checked_at: Timestamp
    age_s: Number = 0.0  # The same by the frontend's clock.
    backends: Many[str] = ()  # Installed ones that may come from it.


class BadVersionItem(Message):
    """A newer version that is not offered: it failed to start where it was rolled out."""

    backend_name: str
    version: Annotated[str, OMIT_EMPTY] = ""
    digest: Annotated[str, OMIT_EMPTY] = ""
    node_name: str = ""
    failed_at: Timestamp
    reason: str = ""


class UpgradesReply(Message):
    """Frontend to admin: what could be upgraded. Only without `unchecked` was everything else up to date when
    those of `checked` were asked."""

    upgrades: Many[UpgradeItem] = ()
    unchecked: Many[UncheckedItem] = ()
    checked: Many[CheckedItem] = ()
    known_bad: Annotated[Many[BadVersionItem], OMIT_EMPTY] = ()
    unread: Annotated[Many[UncheckedItem], OMIT_EMPTY] = ()  # Galleries that nothing installed came from.


# Ours.


class BackendFits(Message):
    """Frontend to admin: for each backend, by gallery@name, the nodes that can run a build of it."""

    nodes: Many[str] = ()  # All that could be meant.
    backends: dict[str, list[str]] = {}
    unread: Annotated[Many[str], OMIT_EMPTY] = ()  # A sentence for each gallery that could not be read.


class BackendUsecases(RootModel[dict[str, list[str]]]):
    """Frontend to admin: what each backend is for, by its name."""


class RollOutBody(OptionalMessage):
    """Admin to frontend: at which pace."""

    policy: Literal["all", "rolling"] = "all"
    batch: Annotated[Count, Field(ge=1, le=10_000)] | None = None  # Nodes at once.


class OpRequest(Message):
    """Admin to frontend: what is to be true on which nodes. Without any choice of nodes: on all."""

    kind: Literal["install", "upgrade", "remove"]
    backend: Name = ""
    nodes: Annotated[Many[Name], Field(max_length=10_000)] = ()  # By name or id.
    selector: Name = ""  # Labels: key=value,key=value.
    galleries: str = ""
    uri: Name = ""
    name: Name = ""
    alias: Name = ""
    roll_out: RollOutBody = RollOutBody()
    force: bool = False  # Of an upgrade: also to a version that failed to start, and where nothing is newer.
    expires_s: Annotated[Number, Field(gt=0, le=10 * 365 * 86_400)] | None = None
    idempotency_key: Annotated[str, Field(max_length=200), AfterValidator(_printable)] = ""
    dry_run: bool = False  # Only say what would be done.


class OpRetryBody(OptionalMessage):
    """Admin to frontend: begin these nodes' failed steps afresh, by name or id; all, if none is named."""

    nodes: Annotated[Many[Name], Field(max_length=10_000)] = ()


class ProblemView(Message):
    code: str
    message: str = ""
    hint: Annotated[str, OMIT_EMPTY] = ""
    retryable: bool = False


class ProgressView(Message):
    """How far a node is with what it has in hand."""

    percentage: Number = 0.0
    phase: Annotated[str, OMIT_EMPTY] = ""
    file_name: Annotated[str, OMIT_EMPTY] = ""
    current_bytes: Annotated[Int64, OMIT_EMPTY] = 0
    total_bytes: Annotated[Int64, OMIT_EMPTY] = 0
    # Of a model that has several files, which come one after another.
    file_number: Annotated[Count, OMIT_EMPTY] = 0  # From 1 on.
    file_count: Annotated[Count, OMIT_EMPTY] = 0
    file_bytes: Annotated[Int64, OMIT_EMPTY] = 0  # Of `file_name` alone.
    file_size: Annotated[Int64, OMIT_EMPTY] = 0
    rate_bytes_s: Annotated[Number, OMIT_EMPTY] = 0.0  # Measured; left out while nothing was.
    left_s: Annotated[Number | None, OMIT_NONE] = None  # Left out rather than guessed.
    age_s: Annotated[Number | None, OMIT_NONE] = None  # How long ago this was so, once nothing is heard.


class AttemptView(Message):
    number: Count
    stage: str = ""
    begun_at: Timestamp
    ended_at: Annotated[Timestamp | None, OMIT_NONE] = None
    problem: Annotated[ProblemView | None, OMIT_NONE] = None


class StepView(Message):
    """One node's share of an operation."""

    node_id: str
    node_name: str = ""
    state: str = ""
    wire_status: str = ""  # The contract's word for it.
    stage: str = ""
    attempt: Count = 0
    failures: Count = 0
    names: Many[str] = ()  # The build's own name first.
    version: Annotated[str, OMIT_EMPTY] = ""
    digest: Annotated[str, OMIT_EMPTY] = ""  # What the tag stood for when the operation was made.
    pinned: bool = False  # Every attempt gets just these bytes. LocalAI's workers cannot be held to that.
    reason: Annotated[str, OMIT_EMPTY] = ""
    problem: Annotated[ProblemView | None, OMIT_NONE] = None
    not_before: Annotated[Timestamp | None, OMIT_NONE] = None  # Of the next attempt.
    retry_in_s: Annotated[Number | None, OMIT_NONE] = None  # The same by the frontend's clock.
    replaced_by: Annotated[str, OMIT_EMPTY] = ""
    progress: Annotated[ProgressView | None, OMIT_NONE] = None
    attempts: Annotated[Many[AttemptView], OMIT_EMPTY] = ()


class RollOutView(Message):
    at_once: Count
    canary: bool = False
    proves: bool = False


class OpView(Message):
    """An operation. In lists it comes without its steps."""

    id: str
    kind: str = ""
    status: str = ""
    wish: str = ""
    backend: str = ""
    uri: Annotated[str, OMIT_EMPTY] = ""
    name: Annotated[str, OMIT_EMPTY] = ""
    alias: Annotated[str, OMIT_EMPTY] = ""
    model: Annotated[str, OMIT_EMPTY] = ""  # Of a load or unload `backend` is then what runs it.
    replica: Annotated[Count, OMIT_EMPTY] = 0
    selection: str = ""
    roll_out: RollOutView
    percentage: Number = 0.0
    counts: dict[str, int] = {}
    message: str = ""
    error: Annotated[str, OMIT_EMPTY] = ""
    asked_by: str = ""
    asked_at: Timestamp
    finished_at: Annotated[Timestamp | None, OMIT_NONE] = None
    expires_at: Annotated[Timestamp | None, OMIT_NONE] = None
    idempotency_key: Annotated[str, OMIT_EMPTY] = ""
    dismissed: bool = False
    cleared: Annotated[bool, OMIT_EMPTY] = False  # From the history.
    retryable: bool = False  # A retry would begin something. Never of a load: a new one is asked for instead.
    change: Int64 = 0  # Grows with whatever changes; the id of this state in the stream of events.
    whole: bool = True  # False, in a stream: only those steps are here that have changed.
    steps: Annotated[Many[StepView] | None, OMIT_NONE] = None


class OpSubmitted(Message):
    """Frontend to admin: recorded; and what to know about it."""

    operation: OpView
    joined: bool = False  # It was under way already.
    warnings: Many[str] = ()


class PlannedFetch(Message):
    """What a node would fetch, and the room that it has for it."""

    node_id: str
    # At most, as packed: unpacked it takes more room. 0: it ships with the worker. Left out: not known.
    fetch_bytes: Annotated[Uint64 | None, OMIT_NONE] = None
    disk_free: Annotated[Uint64 | None, OMIT_NONE] = None  # As last heard. Left out: not known.


class OpPlan(Message):
    """Frontend to admin: what would be done."""

    kind: str
    backend: str
    steps: Many[StepView] = ()
    warnings: Many[str] = ()
    fetches: Annotated[Many[PlannedFetch], OMIT_EMPTY] = ()  # Of the nodes that something comes to.


class OpViews(Message):
    """Frontend to admin: operations, newest first."""

    operations: Many[OpView] = ()
    next: Annotated[Int64 | None, OMIT_NONE] = None  # There are more: those `before` this number.


class RefusedUpgradeItem(Message):
    """A backend that cannot be upgraded after all."""

    backend_name: str
    code: str = ""
    error: str = ""


class OpsSubmitted(Message):
    """Frontend to admin: one operation for each backend that can be upgraded, and why others cannot."""

    operations: Many[OpSubmitted] = ()
    refused: Annotated[Many[str], OMIT_EMPTY] = ()
    refusals: Annotated[Many[RefusedUpgradeItem], OMIT_EMPTY] = ()  # The same, with backends and codes.
    unchecked: Annotated[Many[UncheckedItem], OMIT_EMPTY] = ()
    checked: Annotated[Many[CheckedItem], OMIT_EMPTY] = ()
    known_bad: Annotated[Many[BadVersionItem], OMIT_EMPTY] = ()


class Tick(Message):
    """In the stream of events: how far a node is at this moment. It is not kept."""

    op: str
    node_id: str
    attempt: Count = 0
    progress: ProgressView
