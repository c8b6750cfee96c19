"""Files between a worker and the shared storage. A reply holds its result or an error, not both."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

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
    """URLs, the best first; they are signed. One that begins with a slash is at the frontend that the worker
    has registered with: by which address it reaches that, only the worker knows."""


class FilesFetch(Message):
    """Frontend to worker, ours: have exactly these files in the folder of models. Safe to repeat."""

    model: str = ""
    op_id: Annotated[str, OMIT_EMPTY] = ""
    attempt: Annotated[Count, OMIT_EMPTY] = 0
    files: Many[WantedFile] = ()


class FilesFetchReply(Message):
    """Worker to frontend: they are there, whole and verified; or the failure."""

    success: bool = False
    error: Annotated[str, OMIT_EMPTY] = ""
    code: Annotated[str, OMIT_EMPTY] = ""  # Of the error, as the list of error codes has it.
