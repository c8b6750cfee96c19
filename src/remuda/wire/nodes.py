"""A node and the frontend over HTTP: register, heartbeat with report, and the rows an admin sees.

Fields under a comment "Ours" are additive: other peers ignore them; without them the older behaviour holds.
"""

from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, RootModel

from remuda.core import limits
from remuda.core.errors import Rejected
from remuda.wire.codec import (
    GO_ZERO_TIME,
    OMIT_EMPTY,
    OMIT_NONE,
    SECRET,
    WHOLE,
    Count,
    Int32,
    Many,
    Message,
    Number,
    OptionalMessage,
    Timestamp,
    Uint64,
    decode,
)
from remuda.wire.node_facts import NodeClaim, NodeMemory

ReplicaSlots = Annotated[Int32, AfterValidator(lambda value: max(1, value))]
"""How many replicas of one model a node takes; what is below one is read as one."""

# Registration.


class WorkerIdentity(Message):
    """The program behind a node, and which of its lives this is."""

    version: str = ""
    boot_id: str = ""


class RegisterRequest(Message):
    """Worker to frontend: this is who I am and what I have. Figures are bytes. Safe to repeat."""

    name: str = ""
    node_type: Annotated[str, OMIT_EMPTY] = ""  # Empty: backend.
    address: str = ""  # host:port; the port is the first that backends are given.
    http_address: str = ""  # host:port of the worker's file server.
    token: Annotated[str, OMIT_EMPTY, SECRET] = ""
    total_vram: Uint64 = 0
    available_vram: Uint64 = 0
    total_ram: Annotated[Uint64 | None, OMIT_NONE] = None  # None, here and below: could not be read.
    available_ram: Annotated[Uint64 | None, OMIT_NONE] = None
    total_disk: Annotated[Uint64 | None, OMIT_NONE] = None  # Of the file system that holds the models.
    available_disk: Annotated[Uint64 | None, OMIT_NONE] = None
    gpu_vendor: str = ""
    gpu_compute_capability: str = ""
    capability: str = ""
    max_replicas_per_model: ReplicaSlots = 1
    vram_budget: Annotated[str, OMIT_EMPTY] = ""
    labels: dict[str, str] = {}
    # Ours.
    machine_id: Annotated[str, OMIT_EMPTY] = ""
    # Proves, now and later, that this is the same machine; a frontend with NODE_SECRET among its features
    # expects it as the bearer token of all calls to /api/node/{id}.
    node_secret: Annotated[str, OMIT_EMPTY, SECRET] = ""
    remuda: Annotated[WorkerIdentity | None, OMIT_NONE] = None


NODE_SECRET: Final = "node_secret"
"""The feature of frontends that know nodes by their secret, and give them tokens of their own."""


class FrontendIdentity(Message):
    """The frontend's version, and what it understands beyond the contract."""

    version: str = ""
    features: Many[str] = ()


class WorkerTokens(Message):
    """What frontends present to this one worker: to its HTTP server, and to its gRPC backends."""

    http: Annotated[str, SECRET] = ""
    grpc: Annotated[str, SECRET] = ""


class RegisterReply(Message):
    """Frontend to worker: your id, and the bus credentials unless you wait for approval."""

    id: str
    name: str = ""
    node_type: str = ""
    status: str = ""
    created_at: Timestamp = GO_ZERO_TIME
    api_token: Annotated[str, OMIT_EMPTY, SECRET] = ""
    nats_jwt: Annotated[str, OMIT_EMPTY, SECRET] = ""
    nats_user_seed: Annotated[str, OMIT_EMPTY, SECRET] = ""
    # Ours.
    nats_url: Annotated[str, OMIT_EMPTY] = ""
    worker_tokens: Annotated[WorkerTokens | None, OMIT_NONE] = None  # Without it: the registration token.
    remuda: Annotated[FrontendIdentity | None, OMIT_NONE] = None


SECRET_PREFIX: Final = "rmn_"
"""What a node's secret begins with, so that other text is refused without a look at the store."""
SECRET_CHARS_MIN: Final = 32
NAME_BYTES_MAX: Final = 255
ADDRESS_BYTES_MAX: Final = 512
TEXT_BYTES_MAX: Final = 255
LABEL_KEY_CHARS_MAX: Final = 128
LABEL_VALUE_CHARS_MAX: Final = 255


def problems(request: RegisterRequest) -> list[str]:
    """Why a registration cannot be taken, each reason beginning with its field; empty when it can."""
    found = []
    if not request.name:
        found.append("name: is required")
    if request.node_secret and not request.node_secret.startswith(SECRET_PREFIX):
        found.append(f"node_secret: must begin with {SECRET_PREFIX}")
    elif request.node_secret and len(request.node_secret) < SECRET_CHARS_MIN:
        found.append(f"node_secret: must have at least {SECRET_CHARS_MIN} characters")
    if request.node_type not in ("", "backend", "agent"):
        found.append("node_type: must be 'backend' or 'agent'")
    if not request.address and request.node_type != "agent":
        found.append("address: is required for a backend node")
    identity = request.remuda or WorkerIdentity()
    for field, text, bytes_max in (
        ("name", request.name, NAME_BYTES_MAX),
        ("address", request.address, ADDRESS_BYTES_MAX),
        ("http_address", request.http_address, ADDRESS_BYTES_MAX),
        ("gpu_vendor", request.gpu_vendor, TEXT_BYTES_MAX),
        ("gpu_compute_capability", request.gpu_compute_capability, TEXT_BYTES_MAX),
        ("capability", request.capability, TEXT_BYTES_MAX),
        ("vram_budget", request.vram_budget, TEXT_BYTES_MAX),
        ("machine_id", request.machine_id, TEXT_BYTES_MAX),
        ("node_secret", request.node_secret, TEXT_BYTES_MAX),
        ("remuda.version", identity.version, TEXT_BYTES_MAX),
        ("remuda.boot_id", identity.boot_id, TEXT_BYTES_MAX),
    ):
        if problem := text_problem(field, text, bytes_max):
            found.append(problem)
    return found


def name_problem(name: str) -> str:
    """Why no node can have this name, or empty when one can."""
    return text_problem("name", name, NAME_BYTES_MAX) if name else "name: is required"


def text_problem(field: str, text: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Why this text cannot be stored, or empty when it can."""
    if len(text.encode()) > bytes_max:
        return f"{field}: is longer than {bytes_max} bytes"
    if not text.isprintable():  # What is shown on terminals, and stored: PostgreSQL has no text with NUL.
        return f"{field}: must not contain control characters"
    return ""


def label_problem(key: str, value: str) -> str:
    """Why this label cannot be stored, or empty when it can."""
    shown = key[:LABEL_KEY_CHARS_MAX]
    if not key or any(char.isspace() for char in key):
        return f"label {shown!r}: the key must have at least one character and no white space"
    if len(key) > LABEL_KEY_CHARS_MAX:
        return f"label {shown!r}...: the key is longer than {LABEL_KEY_CHARS_MAX} characters"
    if len(value) > LABEL_VALUE_CHARS_MAX:
        return f"label {shown!r}: the value is longer than {LABEL_VALUE_CHARS_MAX} characters"
    if not (key + value).isprintable():
        return f"label {shown!r}: must not contain control characters"
    return ""


def storable_labels(labels: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """A registration's labels that can be kept, and why each of the others is skipped."""
    kept: dict[str, str] = {}
    skipped: list[str] = []
    for key, value in labels.items():
        problem = label_problem(key, value)
        if not problem and len(kept) >= limits.NODE_LABELS_MAX:
            problem = f"label {key!r}: a node has at most {limits.NODE_LABELS_MAX} labels"
        if problem:
            skipped.append(problem)
        else:
            kept[key] = value
    return kept, skipped


OS_LABEL: Final = "node.os"
"""As OCI images name it, such as linux. Set by our workers."""
ARCHITECTURE_LABEL: Final = "node.arch"
"""As OCI images name it, such as arm64. Set by our workers."""

# Heartbeat.


class StartCheck(StrEnum):
    """What the last start of an installed backend showed."""

    UNCHECKED = "unchecked"  # Its files are there, and nothing has started them, or that is not over.
    STARTED = "started"
    FAILED = "failed"


class InstalledArtifact(Message):
    """A backend on the worker's disk."""

    name: str = ""
    digest: str = ""
    version: str = ""
    alias: Annotated[str, OMIT_EMPTY] = ""  # A second name for it.
    platform_digest: Annotated[str, OMIT_EMPTY] = ""  # Of what this machine took of the image.
    uri: Annotated[str, OMIT_EMPTY] = ""
    gallery_url: Annotated[str, OMIT_EMPTY] = ""  # Empty: from no gallery, or an older worker does not tell.
    installed_at: Annotated[str, OMIT_EMPTY] = ""
    is_system: Annotated[bool, OMIT_EMPTY] = False  # It belongs to the machine, not to its worker.
    is_meta: Annotated[bool, OMIT_EMPTY] = False
    unprovable: Annotated[bool, OMIT_EMPTY] = False  # It starts only with a model, and none has run with it.
    # How its last start went: `unchecked`, `started` or `failed`. Empty: an older worker does not tell, or
    # nothing could be started without a model.
    start_check: Annotated[str, OMIT_EMPTY] = ""
    start_error: Annotated[str, OMIT_EMPTY] = ""  # Why it failed.


class RunningReplica(Message):
    """A model's process on the worker."""

    model_id: str = ""
    replica_index: Count = 0
    backend: str = ""
    address: str = ""
    state: str = ""  # starting, ready, unresponsive, waiting, failed or stopping.
    instance: Annotated[str, OMIT_EMPTY] = ""  # Changes with every new process.
    protocol: Annotated[str, OMIT_EMPTY] = ""  # Empty: gRPC.
    restarts: Annotated[Count, OMIT_EMPTY] = 0  # Times it was started again after it ended by itself.
    trouble: Annotated[str, OMIT_EMPTY] = ""  # Why it is not ready, or why its last process ended.
    # The most that this instance was seen to take; both 0: the worker cannot tell.
    ram_bytes: Annotated[Uint64, OMIT_EMPTY] = 0
    vram_bytes: Annotated[Uint64, OMIT_EMPTY] = 0


class StoppedReplica(Message):
    """A model's process that the worker ended because its backend was changed."""

    model_id: str = ""
    replica_index: Count = 0
    instance: str = ""
    why: str = ""


class Work(Message):
    """An attempt at a step that the worker has in hand."""

    op_id: str = ""
    attempt: Count = 0
    kind: str = ""
    phase: str = ""
    backend: Annotated[str, OMIT_EMPTY] = ""
    percentage: Annotated[Number, OMIT_EMPTY] = 0.0


class ModelFile(Message):
    """A file in the worker's folder of models."""

    path: str = ""  # Below that folder, with slashes.
    size: Uint64 = 0
    sha256: Annotated[str, OMIT_EMPTY] = ""  # Where the worker knows it: nothing is read for a report.
    brought: Annotated[bool, OMIT_EMPTY] = False  # By the worker, and not by a person.
    # Of those that were brought.
    used_ms: Annotated[Uint64, OMIT_EMPTY] = 0  # When a load needed it last, in ms since 1970; 0: not known.
    models: Annotated[Many[str], OMIT_EMPTY] = ()  # For which it was brought.
    inode: Annotated[Uint64, OMIT_EMPTY] = 0  # Paths with the same one are one file on the disk; 0: unknown.


class CutOffFile(Message):
    """A file in that folder that is not all there: it is being copied, or the copying ended early."""

    path: str = ""
    size: Uint64 = 0
    missing: Annotated[Uint64, OMIT_EMPTY] = 0  # Bytes, at least.


class ArrivedFile(Message):
    """What a worker has fetched so far of a file that is not in that folder yet: a load goes on with it."""

    sha256: str = ""  # Of the whole.
    size: Uint64 = 0


class GpuFigures(Message):
    """One of several GPUs with memories of their own, as its driver numbers it."""

    index: Count
    total_vram: Uint64 = 0
    available_vram: Uint64 = 0
    name: Annotated[str, OMIT_EMPTY] = ""  # As its driver calls it.


class Report(Message):
    """The worker's full account of itself. Of one boot, the highest sequence is the truth."""

    boot_id: str = ""
    sequence: Annotated[int, Field(ge=0, le=2**63 - 1), WHOLE] = 0  # What every database can hold.
    installed: Many[InstalledArtifact] = ()
    replicas: Many[RunningReplica] = ()
    work: Many[Work] = ()
    stopped: Annotated[Many[StoppedReplica], OMIT_EMPTY] = ()  # Lately.
    models_path: Annotated[str, OMIT_EMPTY] = ""  # Its folder of models, as the worker itself opens it.
    model_files: Annotated[Many[ModelFile], OMIT_EMPTY] = ()
    model_files_more: Annotated[bool, OMIT_EMPTY] = False  # There are others, too many to tell.
    model_files_cut_off: Annotated[Many[CutOffFile], OMIT_EMPTY] = ()  # Not usable, and not among the others.
    fetches_files: Annotated[bool, OMIT_EMPTY] = False  # It listens to `files.fetch`.
    drops_files: Annotated[bool, OMIT_EMPTY] = False  # And to `files.drop`.
    drops_parts: Annotated[bool, OMIT_EMPTY] = False  # Which it also understands of `model_files_partial`.
    fetched_bytes: Annotated[Uint64, OMIT_EMPTY] = 0  # On the disk, of model files that it has fetched.
    model_files_budget: Annotated[str, OMIT_EMPTY] = ""  # The most that these may come to; empty: no limit.
    model_files_partial: Annotated[Many[ArrivedFile], OMIT_EMPTY] = ()  # As of the last look at the disk.
    gpu_claimed: Annotated[str, OMIT_EMPTY] = ""  # Who else uses its GPUs, to whom it gives way.
    gpus: Annotated[Many[GpuFigures], OMIT_EMPTY] = ()  # Where a process can be given some of several.
    # Workers of one machine that tell the same have the same disk, and the same RAM: it is there once.
    disk_id: Annotated[str, OMIT_EMPTY] = ""
    memory_id: Annotated[str, OMIT_EMPTY] = ""


class Heartbeat(OptionalMessage):
    """Worker to frontend: alive, and these figures changed. None says nothing; 0 is a figure."""

    available_vram: Annotated[Uint64 | None, OMIT_NONE] = None
    total_vram: Annotated[Uint64 | None, OMIT_NONE] = None
    available_ram: Annotated[Uint64 | None, OMIT_NONE] = None
    available_disk: Annotated[Uint64 | None, OMIT_NONE] = None
    total_disk: Annotated[Uint64 | None, OMIT_NONE] = None
    gpu_vendor: Annotated[str, OMIT_EMPTY] = ""
    # Ours.
    report: Annotated[Report | None, OMIT_NONE] = None


BUS_TROUBLE_FEATURE: Final = "bus_trouble"
"""In a registration's reply: this frontend takes a BusTrouble."""


class BusAddress(Message):
    """Where a worker cannot connect to the bus, and why not."""

    address: str = ""  # HOST:PORT.
    why: str = ""


class BusTrouble(Message):
    """Worker to frontend, ours, to one that announces it: I am here, but commands cannot reach me by the bus,
    and why. No sign of health. It counts until a report of this boot with a higher sequence comes."""

    boot_id: str = ""
    sequence: Annotated[int, Field(ge=0, le=2**63 - 1), WHOLE] = 0
    reason: str = ""
    unreached: Annotated[BusAddress | None, OMIT_NONE] = None  # None: another trouble, or unsaid.


class Departure(OptionalMessage):
    """Worker to frontend, with its drain and its goodbye: who is leaving. Without it: the present one."""

    # Ours.
    boot_id: Annotated[str, OMIT_EMPTY] = ""
    for_good: Annotated[bool, OMIT_EMPTY] = False  # The machine leaves the fleet: it is not just a stop.


# Short answers.


class NodeMessage(Message):
    """Frontend to caller: done, in words."""

    message: str = ""


class HeartbeatReply(NodeMessage):
    """Frontend to worker: heard."""

    message: str = "heartbeat received"
    uncommandable: Annotated[str, OMIT_EMPTY] = ""  # Ours: why this frontend's commands do not reach it.


NODE_NOT_COMMANDABLE: Final = NodeMessage(message="node marked as not connected to the bus")
NODE_DRAINING: Final = NodeMessage(message="node set to draining")
NODE_RESUMED: Final = NodeMessage(message="node resumed")
NODE_OFFLINE: Final = NodeMessage(message="node set to offline")
NODE_DEREGISTERED: Final = NodeMessage(message="node deregistered")
INVITE_WITHDRAWN: Final = NodeMessage(message="invite withdrawn")


class NodeErrorDetail(Message):
    code: int = 0  # The HTTP status.
    message: str = ""
    type: str = "node_error"
    # Ours, additive: the code of the error, and the part of the message that says what to do.
    reason: Annotated[str, OMIT_EMPTY] = ""
    hint: Annotated[str, OMIT_EMPTY] = ""
    details: Annotated[Many[str], OMIT_EMPTY] = ()  # One line for each reason in the message, and more.


class NodeError(Message):
    """Frontend to caller: refused. The shape every handler uses."""

    error: NodeErrorDetail

    @classmethod
    def of(
        cls,
        status: int,
        message: str,
        reason: str = "",
        hint: str = "",
        type_: str = "node_error",
        details: tuple[str, ...] = (),
    ) -> "NodeError":
        return cls(
            error=NodeErrorDetail(
                code=status, message=message, type=type_, reason=reason, hint=hint, details=details
            )
        )


class TokenError(Message):
    """Frontend to caller: refused before any handler saw the request."""

    error: str
    reason: Annotated[str, OMIT_EMPTY] = ""  # Ours, additive: the code of the error.


TOKEN_MISSING: Final = TokenError(error="missing or invalid Authorization header", reason="unauthorized")
TOKEN_WRONG: Final = TokenError(error="invalid registration token", reason="unauthorized")
# The token is right, but every worker has it: a node with more to show must show it.
TOKEN_NOT_ENOUGH: Final = TokenError(
    error="the registration token does not prove that this call comes from that node: call from its own "
    "machine with its own secret or invite, or register under another name",
    reason="unauthorized",
)


def error_reason(payload: bytes) -> str:
    """The code in an error answer; empty where it has none, as a LocalAI frontend's."""
    with suppress(Rejected):
        return decode(NodeError, payload).error.reason
    return ""


def error_text(payload: bytes) -> str:
    """What an error answer of either shape says; empty when it has neither shape."""
    with suppress(Rejected):
        return decode(NodeError, payload).error.message
    with suppress(Rejected):
        return decode(TokenError, payload).error
    return ""


# What an admin sees and sets.

ReachabilityWord = Literal["up", "silent", "gone", "departed"]


class NodeFacts(Message):
    """The facts behind a node's status, each on its own."""

    reachability: ReachabilityWord = "gone"
    approved: bool = False
    drained: bool = False
    leaving: bool = False
    version: str = ""
    boot_id: str = ""
    identified_by: str = ""  # secret, invite, or address: the last proves little.
    source: str = ""  # The IP address of its last registration.
    contested_from: Annotated[str, OMIT_EMPTY] = ""  # Whose registration under this name was refused.
    claim: Annotated[NodeClaim | None, OMIT_NONE] = None
    unreachable: Annotated[bool, OMIT_EMPTY] = False  # Some frontend gets no answer at its HTTP address.
    heard_seconds_ago: Annotated[int | None, OMIT_NONE] = None  # By the frontend's clock: how old this is.
    left: Annotated[bool, OMIT_EMPTY] = False  # It left the fleet by its own wish: it is not waited for.
    joining: Annotated[bool, OMIT_EMPTY] = False  # Not ready yet: its worker began to connect a moment ago.
    gpus: Annotated[Many[GpuFigures], OMIT_EMPTY] = ()  # Of several, where its worker tells them apart.
    memory: Annotated[NodeMemory | None, OMIT_NONE] = None  # Left out: not asked for, or never reported.
    reasons: Many[str] = ()


class NodeView(Message):
    """Frontend to admin: one node."""

    id: str
    name: str = ""
    node_type: str = ""
    address: str = ""
    http_address: str = ""
    status: str = ""
    total_vram: Uint64 = 0
    available_vram: Uint64 = 0
    reserved_vram: Uint64 = 0
    total_ram: Uint64 = 0
    available_ram: Uint64 = 0
    total_disk: Uint64 = 0
    available_disk: Uint64 = 0
    gpu_vendor: str = ""
    gpu_compute_capability: str = ""
    capability: Annotated[str, OMIT_EMPTY] = ""
    vram_budget: Annotated[str, OMIT_EMPTY] = ""
    vram_budget_bytes: Annotated[Uint64, OMIT_EMPTY] = 0
    max_replicas_per_model: ReplicaSlots = 1
    max_replicas_per_model_manually_set: bool = False
    vram_budget_manually_set: bool = False
    last_heartbeat: Timestamp = GO_ZERO_TIME
    created_at: Timestamp = GO_ZERO_TIME
    updated_at: Timestamp = GO_ZERO_TIME
    model_count: Count = 0
    in_flight_count: Count = 0
    labels: Annotated[dict[str, str], OMIT_EMPTY] = {}
    # Ours.
    remuda: Annotated[NodeFacts | None, OMIT_NONE] = None


class ApproveReply(Message):
    """Frontend to admin: the node is in, and these are the credentials its next registration brings."""

    id: str
    name: str = ""
    node_type: str = ""
    status: str = ""
    message: str = ""
    api_token: Annotated[str, OMIT_EMPTY, SECRET] = ""
    nats_jwt: Annotated[str, OMIT_EMPTY, SECRET] = ""
    nats_user_seed: Annotated[str, OMIT_EMPTY, SECRET] = ""


class InviteBody(Message):
    """Admin to frontend: let in one peer, under this name."""

    name: str = ""


class InviteReply(Message):
    """Frontend to admin: the registration token for that peer, valid for its name only."""

    name: str
    registration_token: Annotated[str, SECRET]


class ModelRow(Message):
    """Frontend to admin or worker: one replica as the frontend knows it."""

    id: str = ""
    node_id: str = ""
    model_name: str = ""
    address: str = ""
    replica_index: Count = 0
    in_flight: Count = 0
    state: str = ""  # staging, loading, loaded, unloading or idle.
    last_used: Timestamp = GO_ZERO_TIME
    created_at: Timestamp = GO_ZERO_TIME
    updated_at: Timestamp = GO_ZERO_TIME
    loading_by: Annotated[str, OMIT_EMPTY] = ""
    backend_type: Annotated[str, OMIT_EMPTY] = ""
    config_revision: Annotated[str, OMIT_EMPTY] = ""
    effective_options_hash: Annotated[str, OMIT_EMPTY] = ""
    cleanup_error: Annotated[str, OMIT_EMPTY] = ""
    cleanup_attempts: Annotated[Count, OMIT_EMPTY] = 0
    cleanup_next_retry_at: Annotated[Timestamp | None, OMIT_NONE] = None


class Labels(RootModel[dict[str, str]]):
    """Admin to frontend and back: a node's labels."""


class MaxReplicasBody(Message):
    """Admin to frontend: the most replicas of one model on this node."""

    value: Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE]


class MaxReplicasReply(Message):
    max_replicas_per_model: Count


class VramBudgetBody(Message):
    """Admin to frontend: a share ("80%", "0.8") or an amount ("12GB", bytes) of VRAM; empty clears it."""

    value: Annotated[str, Field(max_length=TEXT_BYTES_MAX)]


class VramBudgetReply(Message):
    vram_budget: str


class ResetReply(Message):
    """Frontend to admin: the admin's value is gone, the worker's own counts again."""

    reset: bool = True
