"""What is wanted of the fleet (an operation), and its share on each node (a step). Data only."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NewType

from remuda.core.errors import Problem
from remuda.core.ids import BootId, NodeId, ReplicaKey
from remuda.ops.reasons import StepReason

OpId = NewType("OpId", str)
"""An operation's UUID. It names the subject of its progress, so it is a valid NATS token."""

StepKey = tuple[OpId, NodeId]
AttemptKey = tuple[OpId, NodeId, int]

FRONTENDS: Final = NodeId("frontends")
"""In place of a node in a step that the frontends carry out for themselves: no node can have this id."""
FRONTENDS_NAME: Final = "frontends"


class Kind(StrEnum):
    INSTALL = "install"
    UPGRADE = "upgrade"
    REMOVE = "remove"
    LOAD = "load"  # Of one replica of a model; a frontend carries it out, see scheduler.
    UNLOAD = "unload"
    INSTALL_MODEL = "install_model"  # Its files come to the frontends; see model_installs.
    REMOVE_MODEL = "remove_model"  # From the frontends first, then from the nodes that have files of it.

    @property
    def of_replica(self) -> bool:
        return self in (Kind.LOAD, Kind.UNLOAD)

    @property
    def of_model(self) -> bool:
        """About a model as it is configured and its files; loads and unloads are about one replica."""
        return self in (Kind.INSTALL_MODEL, Kind.REMOVE_MODEL)

    @property
    def removes(self) -> bool:
        return self in (Kind.REMOVE, Kind.REMOVE_MODEL)


OF_BACKENDS: Final = frozenset({Kind.INSTALL, Kind.UPGRADE, Kind.REMOVE})
OF_MODELS: Final = frozenset({Kind.INSTALL_MODEL, Kind.REMOVE_MODEL})


class State(StrEnum):
    PENDING = "pending"  # Waits: for its node, for its turn, or for the time of the next attempt.
    RUNNING = "running"  # An attempt is at work on the node, as far as is known.
    STOPPING = "stopping"  # No longer wanted, and its attempt may not have ended yet.
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # Given up, and kept until it is retried or dismissed.
    SKIPPED = "skipped"  # The node could not have done it; nothing was sent.
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.SKIPPED, State.CANCELLED})


class Stage(StrEnum):
    """What an attempt does. All but the first belong to upgrades that prove themselves."""

    APPLY = "apply"
    PROVE = "prove"  # The new version starts and answers its health call.
    ROLL_BACK = "roll_back"  # It did not: return to the version before.


class Wish(StrEnum):
    """What people want of an operation now."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the bytes come from, in full, so that a retry next week needs nothing else."""

    backend: str  # As it was asked for; a meta backend's name, often.
    galleries: str = ""  # A JSON list, as the wire carries it.
    uri: str = ""  # A source outside the galleries; of a model: where its files come from.
    name: str = ""  # Of a model that is installed or removed: what it is called.
    alias: str = ""
    model: "ModelSpec | None" = None  # Of a model that is installed or removed.


@dataclass(frozen=True, slots=True)
class ModelPart:
    """One file of a model whose gallery lists them."""

    path: str  # Below the model's folder.
    source: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What else was asked for about a model that is installed or removed."""

    sha256: str = ""  # Which its only file must have; empty: whatever its source says.
    mirrors: tuple[str, ...] = ()  # Sources of the same bytes, tried in this order after the first.
    parts: tuple[ModelPart, ...] = ()  # All of its files, where they do not come from one source.
    config: str = ""  # YAML that is laid over the configuration made from its files.
    choice: str = ""  # Which of its gallery's variants is installed, and why.
    written_at: str = ""  # When the model that is removed was written: one that was added since stays.
    files: tuple[str, ...] = ()  # What is removed from nodes, below their folders of models.
    any_files: bool = False  # Also files that a person has put there.
    held_by: str = ""  # The only frontend that has the bytes and can carry it out; empty: any can.
    held_on: str = ""  # The machine of that frontend, for people.
    configured: str = ""  # The ETag of the configuration that wants it; empty: it makes the model.


class UnloadCause(StrEnum):
    ASKED = "asked"
    IDLE = "idle"
    SURPLUS = "surplus"  # More of its model than are declared, or two on one node where one is to be.
    MAKES_ROOM = "makes_room"
    OUTDATED = "outdated"  # Its model's configuration changed.
    GIVES_WAY = "gives_way"  # To other programs in the GPU.
    MODEL_REMOVED = "model_removed"
    MODEL_RENAMED = "model_renamed"
    UNKNOWN = "unknown"  # Only the release that wrote it knows; this one has its words.


@dataclass(frozen=True, slots=True)
class UnloadReason:
    """Why a replica is unloaded."""

    cause: UnloadCause
    by: str = ""  # Who ASKED.
    for_replica: ReplicaKey | None = None  # It MAKES_ROOM for this one, which waits until it is gone.
    text: str = ""  # What is known of an UNKNOWN one.

    def __str__(self) -> str:
        match self.cause:
            case UnloadCause.ASKED:
                return f"asked for by {self.by}"
            case UnloadCause.IDLE:
                return "it was not used for a while"
            case UnloadCause.SURPLUS:
                return "more replicas were loaded than its model is to have"
            case UnloadCause.MAKES_ROOM:
                return f"makes room for {self.for_replica}"
            case UnloadCause.OUTDATED:
                return "its configuration changed"
            case UnloadCause.GIVES_WAY:
                return "the owner of its machine uses the GPU"
            case UnloadCause.MODEL_REMOVED:
                return "its model was removed"
            case UnloadCause.MODEL_RENAMED:
                return "its model was renamed"
            case UnloadCause.UNKNOWN:
                return self.text


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    """The replica that a load or an unload is about. Where its backend comes from is the Source's to say."""

    key: ReplicaKey
    revision: str = ""  # Of the model's configuration.
    reason: UnloadReason | None = None  # Of an unload.


@dataclass(frozen=True, slots=True)
class Goal:
    """What one node is to end up with."""

    names: tuple[str, ...]  # Under any of these it is listed: the concrete build's name first.
    digest: str = ""  # Pinned when the operation was made; empty: none could be had.
    version: str = ""
    replaces: bool = False  # Tell a worker that would keep what it has to fetch this instead.
    tag_decides: bool = False  # Its worker (LocalAI's) takes no digest: it fetches by the tag.


@dataclass(frozen=True, slots=True)
class Installation:
    """What tells one installation of a backend from another, as its node lists it. Only compared: the time is
    by the node's own clock."""

    installed_at: str = ""
    digest: str = ""

    def replaces(self, earlier: "Installation") -> bool:
        """Whether it is known to be another one."""
        later_time = bool(self.installed_at and earlier.installed_at)
        if later_time and self.installed_at != earlier.installed_at:
            return True
        return bool(self.digest and earlier.digest) and self.digest != earlier.digest


@dataclass(frozen=True, slots=True)
class Step:
    """One node's share. `attempt` fences what is heard: news of an earlier one is no news."""

    op: OpId
    node: NodeId
    node_name: str  # As it was, for the node may be renamed or removed.
    kind: Kind
    source: Source
    goal: Goal
    state: State = State.PENDING
    stage: Stage = Stage.APPLY
    proves: bool = False
    rolls_back: bool = False  # Its worker can return to the version before.
    expires: datetime | None = None  # Not begun by then, it is given up.
    attempt: int = 0
    failures: int = 0  # Hard ones of this stage in a row; waiting for a slow worker is none.
    boot: BootId | None = None  # The worker's life in which the attempt was begun.
    answer_by: datetime | None = None  # RUNNING: until then its reply is on time.
    wait_until: datetime | None = None  # PENDING: not before. RUNNING, STOPPING: silence is tolerated until
    # then; None while the node is away, for silence says nothing meanwhile.
    problem: Problem | None = None  # Of the last attempt that failed.
    why: StepReason | None = None  # It waits, or ended so.
    replaced_by: OpId | None = None  # A newer operation wants the opposite, or other bytes.
    version: int = 0
    target: ReplicaTarget | None = None  # Of a load or unload.
    listed_before: Installation | None = None  # What was there when an upgrade was sent to a worker without
    # reports; None: not known.

    @property
    def key(self) -> StepKey:
        return self.op, self.node

    @property
    def reason(self) -> str:
        """Why it waits, or how it ended, in words; decisions go by `why`."""
        return "" if self.why is None else str(self.why)

    @property
    def by_frontend(self) -> bool:
        """A frontend carries it out, and holds its request open for as long as it is at it."""
        return self.kind.of_replica or self.node == FRONTENDS


@dataclass(frozen=True, slots=True)
class RollOut:
    """How many nodes may be at work at once. With a canary, one goes first and must succeed."""

    at_once: int
    canary: bool = False
    proves: bool = False  # Each node shows that the new version starts; a failure stops the rest.


@dataclass(frozen=True, slots=True)
class Operation:
    id: OpId
    kind: Kind
    source: Source
    roll_out: RollOut
    asked_by: str
    asked_at: datetime
    wish: Wish = Wish.RUN
    expires: datetime | None = None
    idempotency_key: str = ""
    selection: str = ""  # Which nodes were asked for, in words.
    finished_at: datetime | None = None
    dismissed: bool = False  # No longer listed among what needs attention; the history has it.
    cleared: bool = False  # Nor is it in the history.
    version: int = 0
    target: ReplicaTarget | None = None  # Of a load or unload.

    @property
    def model(self) -> str:
        """The name of the model that it is about; empty: it is about a backend."""
        if self.kind.of_model:
            return self.source.name
        return "" if self.target is None else self.target.key.model


class Verb(StrEnum):
    """What is sent to a worker."""

    INSTALL = "install"
    UPGRADE = "upgrade"
    REMOVE = "remove"
    PROVE = "prove"
    ROLL_BACK = "roll_back"
    CANCEL = "cancel"
    LOAD = "load"
    UNLOAD = "unload"
    INSTALL_MODEL = "install_model"
    REMOVE_MODEL = "remove_model"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Sent only after the step that it belongs to is committed."""

    op: OpId
    node: NodeId
    verb: Verb
    attempt: int


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """While it was carried out, an attempt was found to be no longer needed."""

    why: str


@dataclass(frozen=True, slots=True)
class DoneWithNote:
    """The worker did what it was asked, and says something about it: that there was nothing to do, or that
    nothing could be started."""

    note: str


Ending = Problem | NotNeeded | DoneWithNote | None
"""Of an attempt. None: it did what it was asked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended, as the worker said, or the frontend that carried it out."""

    attempt: int
    ending: Ending = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What is true of a step's node now. A node that reports says itself what it has in hand; of others only
    the open request and the list of what is installed are known."""

    exists: bool = True
    away: str = ""  # Why the node cannot be worked with now; empty: it can.
    boot: BootId | None = None
    reports: bool = True
    installed: bool | None = None  # Whether the goal's backend is there; None: not known.
    digest: str = ""  # Of what is there.
    version: str = ""  # As its metadata calls it.
    start_check: str = ""  # What its last start showed (see StartCheck); empty: its worker does not tell.
    start_error: str = ""
    installation: Installation | None = None  # Which one is there, of a worker without reports.
    working: bool = False  # The attempt is in its report, or its request is open and not overdue.
    awaited: bool = True  # The reply of the attempt is waited for, and was not missed.
    lacking: bool = False  # Its reply was missed, and a list asked for a while later does not show it.
    told: bool = True  # If it reports: its present life has done so since the attempt was begun.
    outcome: Outcome | None = None
    blocked: StepReason | None = None  # Why it is not this step's turn; None: it is.
    proven_elsewhere: bool = False  # Another node of the same operation has run the new version.
    proof_optional: bool = False  # A version that nothing can be started with is kept all the same.


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """How long what is waited for."""

    answer: timedelta = timedelta(minutes=15)  # For the reply to a request; after it the worker is just slow.
    lease: timedelta = timedelta(seconds=60)  # For a reporting worker to show what it was sent.
    silence: timedelta = timedelta(hours=2)  # For a worker without reports, beyond `answer`.
    stop: timedelta = timedelta(minutes=5)  # For unwanted work to end.
    failures_max: int = 10
    owners_max: int = 0  # Frontends that may go while they carry it out, which counts as no failure.
    doubtful_failures_max: int = 3  # Of failures that are most likely permanent.
    rollback_failures_max: int = 4  # A node between two versions waits for a person before long.
    backoff_first: timedelta = timedelta(seconds=30)
    backoff_most: timedelta = timedelta(minutes=15)
    unanswered_most: timedelta = timedelta(hours=1)  # A source that does not answer may be back by then,
    unanswered_backoff_most: timedelta = timedelta(minutes=2)  # and is soon noticed to be.
    server_wait_most: timedelta = timedelta(hours=6)  # However long a server asks to be left alone.


@dataclass(frozen=True, slots=True)
class Moment:
    """`now` is the store's. `fraction` (0..1) spreads retries: who failed together must not come back so."""

    now: datetime
    fraction: float
    policy: StepPolicy = StepPolicy()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One line of a step's history."""

    op: OpId
    node: NodeId
    number: int
    stage: Stage
    begun_at: datetime
    ended_at: datetime | None = None
    problem: Problem | None = None
