"""Frontends among themselves. The sender hears its own message: applying one twice must change nothing."""

from typing import Annotated, Literal

from pydantic import JsonValue

from remuda.wire.codec import (
    GO_ZERO_TIME,
    OMIT_EMPTY,
    OMIT_NONE,
    Count,
    Int32,
    Int64,
    Many,
    Message,
    Number,
    OptionalMessage,
    Timestamp,
    Uint64,
)


class FrontendMessage(Message):
    """Ours: one frontend to the others. It ignores its own."""

    frontend: str = ""  # The sender.


class FrontendAnswer(FrontendMessage):
    """Ours: what a frontend answers another one, on a subject that all of them hear."""

    to: str  # The frontend that asked.


class ChangeMessage(FrontendMessage, OptionalMessage):
    """Something has changed: read it again."""


class NodeProgress(Message):
    """One node's share of a gallery job."""

    node_id: str = ""
    node_name: str = ""
    status: str = ""  # queued, downloading, running_on_worker, success or error.
    file_name: Annotated[str, OMIT_EMPTY] = ""
    current: Annotated[str, OMIT_EMPTY] = ""
    total: Annotated[str, OMIT_EMPTY] = ""
    percentage: Number = 0.0
    phase: Annotated[str, OMIT_EMPTY] = ""
    error: Annotated[str, OMIT_EMPTY] = ""


class GalleryStatus(Message):
    """All that is known of a gallery job. Empty `nodes` leave those known before as they were."""

    deletion: bool = False
    file_name: str = ""
    error: Annotated[str, OMIT_EMPTY] = ""
    processed: bool = False  # Nothing more will come.
    message: str = ""
    progress: Number = 0.0
    phase: Annotated[str, OMIT_EMPTY] = ""
    file_size: str = ""
    downloaded_size: str = ""
    gallery_element_name: str = ""
    cancelled: bool = False
    cancellable: bool = False
    nodes: Annotated[Many[NodeProgress], OMIT_EMPTY] = ()
    current_bytes: Annotated[Int64, OMIT_EMPTY] = 0
    total_bytes: Annotated[Int64, OMIT_EMPTY] = 0


class GalleryProgress(Message):
    """The state of a gallery job, whole."""

    job_id: str
    status: GalleryStatus = GalleryStatus()


class GalleryCancel(Message):
    """Cancel a gallery job, or pause it. No worker hears this."""

    id: str
    pause: Annotated[bool, OMIT_EMPTY] = False


class OpCacheEntry(Message):
    """A job for a gallery element began, or ended; at the end only the job is named."""

    job_id: str
    cache_key: str = ""
    is_backend: bool = False


class CacheInvalidation(Message):
    """Something installed changed; an empty element means all."""

    element: Annotated[str, OMIT_EMPTY] = ""
    op: Annotated[str, OMIT_EMPTY] = ""  # install, upgrade or delete.
    config_revision: Annotated[str, OMIT_EMPTY] = ""


class StagingStatus(Message):
    """A model's files on their way to a node: the file being sent, and the share of all files."""

    model_id: str = ""
    node_name: str = ""
    file_name: str = ""
    speed: str = ""
    message: str = ""
    bytes_sent: Int64 = 0
    total_bytes: Int64 = 0
    progress: Number = 0.0
    file_index: Count = 0  # The first file is 1.
    total_files: Count = 0
    started_at: Timestamp = GO_ZERO_TIME


class StagingProgress(Message):
    """How far the staging of a model is, or that it is over."""

    model_id: str
    status: Annotated[StagingStatus | None, OMIT_NONE] = None
    done: bool = False


class StateDelta(Message):
    """One change of a map that every frontend mirrors."""

    op: Literal["set", "delete"]
    key: JsonValue
    value: Annotated[JsonValue, OMIT_NONE] = None


class PrefixObserved(Message):
    """A replica has seen a prompt with this chain of prefix hashes."""

    model: str
    chain: Many[Uint64] = ()
    node_id: str
    replica: Int32 = 0


class PrefixForgotten(Message):
    """A replica's prefixes are gone."""

    model: str
    node_id: str
    replica: Int32 = 0  # Negative: all replicas on that node.


class ResponseCancel(Message):
    """Stop generating a response; the origin ignores its own message."""

    response_id: str
    origin: str = ""
