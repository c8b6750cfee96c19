"""Backends on a worker: install, upgrade, list, stop, delete, and the progress of an install."""

from enum import StrEnum
from typing import Annotated

from remuda.wire.codec import OMIT_EMPTY, Count, Int32, Many, Message, Number, OptionalMessage, Uint64


class BackendInstall(Message):
    """Frontend to worker: have this backend installed, and running if a model is named. Safe to repeat."""

    backend: str
    model_id: Annotated[str, OMIT_EMPTY] = ""  # Empty: an admin's install, not tied to a model.
    backend_galleries: Annotated[str, OMIT_EMPTY] = ""  # A JSON list as text; replaces the worker's own.
    uri: Annotated[str, OMIT_EMPTY] = ""  # A source outside the galleries.
    name: Annotated[str, OMIT_EMPTY] = ""
    alias: Annotated[str, OMIT_EMPTY] = ""
    replica_index: Annotated[Int32, OMIT_EMPTY] = 0
    force: Annotated[bool, OMIT_EMPTY] = False  # Only for workers that do not know backend.upgrade.
    op_id: Annotated[str, OMIT_EMPTY] = ""  # Empty: progress is not wanted, and not published.
    # Ours, additive: older peers ignore them, and their absence means the older behaviour.
    attempt: Annotated[Count, OMIT_EMPTY] = 0  # Reports about earlier attempts are ignored.
    digest: Annotated[str, OMIT_EMPTY] = ""  # Of the image index: exactly these bytes, wherever a tag moved.
    platform_digest: Annotated[str, OMIT_EMPTY] = ""  # Of the one image in that index.
    protocol: Annotated[str, OMIT_EMPTY] = ""  # What the sender speaks beside gRPC: `http`, or nothing.
    model_path: Annotated[str, OMIT_EMPTY] = ""  # For servers that need the model before they start.
    options: Annotated[Many[str], OMIT_EMPTY] = ()
    prove: Annotated[bool, OMIT_EMPTY] = (
        False  # Without a model: start it all the same, to see that it works.
    )
    gpus: Annotated[Many[Count], OMIT_EMPTY] = ()  # Those it is to see, by the numbers in reports; none: all.


class BackendInstallReply(Message):
    """Worker to frontend: done, and where the process listens; or the failure."""

    success: bool = False
    address: Annotated[str, OMIT_EMPTY] = ""  # Empty: the address the node registered.
    error: Annotated[str, OMIT_EMPTY] = ""
    # Ours.
    instance: Annotated[str, OMIT_EMPTY] = ""  # Which process it is: another one has another.
    protocol: Annotated[str, OMIT_EMPTY] = ""  # Empty: gRPC, at `address`.
    path: Annotated[str, OMIT_EMPTY] = ""  # Of a process that speaks HTTP: its place at `address`.
    unproven: Annotated[str, OMIT_EMPTY] = ""  # Why nothing could be started to see that it works.
    digest: Annotated[str, OMIT_EMPTY] = ""  # Of what is installed now; empty: not looked at, or it has none.
    code: Annotated[str, OMIT_EMPTY] = ""  # Of the error, as the list of error codes has it.
    unchanged: Annotated[bool, OMIT_EMPTY] = False  # It was there and had started: nothing was done.


class BackendUpgrade(Message):
    """Frontend to worker: stop this backend's processes and install it anew. Starts nothing."""

    backend: str
    backend_galleries: Annotated[str, OMIT_EMPTY] = ""
    uri: Annotated[str, OMIT_EMPTY] = ""
    name: Annotated[str, OMIT_EMPTY] = ""
    alias: Annotated[str, OMIT_EMPTY] = ""
    replica_index: Annotated[Int32, OMIT_EMPTY] = 0
    op_id: Annotated[str, OMIT_EMPTY] = ""
    # Ours; as for an install.
    attempt: Annotated[Count, OMIT_EMPTY] = 0
    digest: Annotated[str, OMIT_EMPTY] = ""
    force: Annotated[bool, OMIT_EMPTY] = False  # Also where nothing is newer.


class BackendUpgradeReply(Message):
    """Worker to frontend: done or failed, and which processes ended on the way, in either case."""

    success: bool = False
    error: Annotated[str, OMIT_EMPTY] = ""
    stopped_process_keys: Annotated[Many[str], OMIT_EMPTY] = ()
    reports_stopped_processes: Annotated[bool, OMIT_EMPTY] = False  # False: the list says nothing.
    # Ours.
    digest: Annotated[str, OMIT_EMPTY] = ""  # As for an install.
    code: Annotated[str, OMIT_EMPTY] = ""  # As for an install.
    unchanged: Annotated[bool, OMIT_EMPTY] = False  # It had this version: nothing was fetched or stopped.


class BackendDelete(Message):
    """Frontend to worker: stop this backend's processes and remove its files."""

    backend: str
    # Ours; as for an install.
    op_id: Annotated[str, OMIT_EMPTY] = ""
    attempt: Annotated[Count, OMIT_EMPTY] = 0


class BackendDeleteReply(BackendUpgradeReply):
    """Worker to frontend: as for an upgrade."""


class BackendRollback(Message):
    """Frontend to worker, ours: stop this backend's processes and return to the version before."""

    backend: str
    op_id: Annotated[str, OMIT_EMPTY] = ""
    attempt: Annotated[Count, OMIT_EMPTY] = 0
    from_digest: Annotated[str, OMIT_EMPTY] = ""  # Only from these bytes: what is said twice is done once.


class BackendRollbackReply(BackendUpgradeReply):
    """Worker to frontend: as for an upgrade."""


class BackendCancel(Message):
    """Frontend to worker, ours: give up this operation's install or upgrade. What was fetched is kept."""

    op_id: str


class BackendCancelReply(Message):
    """Worker to frontend: understood, and whether there was anything to give up."""

    success: bool = False
    cancelled: bool = False  # False: nothing of it is at work, or it has gone too far.
    error: Annotated[str, OMIT_EMPTY] = ""


class BackendList(OptionalMessage):
    """Frontend to worker: what is installed?"""


class InstalledBackend(Message):
    """One directory of backends; the texts are what its metadata says."""

    name: str = ""
    is_system: bool = False
    is_meta: bool = False
    installed_at: Annotated[str, OMIT_EMPTY] = ""
    gallery_url: Annotated[str, OMIT_EMPTY] = ""
    version: Annotated[str, OMIT_EMPTY] = ""
    uri: Annotated[str, OMIT_EMPTY] = ""
    digest: Annotated[str, OMIT_EMPTY] = ""


class BackendListReply(Message):
    """Worker to frontend: what is installed, in no order. With an error the list says nothing."""

    backends: Many[InstalledBackend] = ()
    error: Annotated[str, OMIT_EMPTY] = ""


class BackendStop(OptionalMessage):
    """Frontend to worker: stop processes. No reply."""

    backend: str = ""  # A backend, a model, or one process key. Empty: everything.
    force: Annotated[bool, OMIT_EMPTY] = False  # Do not ask the process to free its memory first.


class InstallPhase(StrEnum):
    """How far an install or upgrade is, in the words of its progress events."""

    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"
    STARTING = "starting"


class InstallProgress(Message):
    """Worker to frontend: how far an install or upgrade is. May be lost, or come late."""

    op_id: str = ""
    node_id: str = ""
    backend: str = ""
    file_name: Annotated[str, OMIT_EMPTY] = ""  # What to show, not a path.
    current: Annotated[str, OMIT_EMPTY] = ""  # Size strings; see sizes.py.
    total: Annotated[str, OMIT_EMPTY] = ""  # Empty: not known.
    percentage: Number = 0.0
    phase: Annotated[str, OMIT_EMPTY] = ""  # An InstallPhase, or a word of a newer peer.
    # Ours.
    seq: Annotated[Uint64, OMIT_EMPTY] = 0  # Grows with each event of one request: what is older came late.
    current_bytes: Annotated[Uint64, OMIT_EMPTY] = 0  # Of this phase, and exact.
    total_bytes: Annotated[Uint64, OMIT_EMPTY] = 0
    overall: Annotated[Number, OMIT_EMPTY] = 0.0  # Of all phases together; neither falls nor passes 100.
    # Of a model that has several files, which come one after another.
    file_number: Annotated[Count, OMIT_EMPTY] = 0  # From 1 on.
    file_count: Annotated[Count, OMIT_EMPTY] = 0
    file_bytes: Annotated[Uint64, OMIT_EMPTY] = 0  # Of `file_name` alone.
    file_size: Annotated[Uint64, OMIT_EMPTY] = 0
