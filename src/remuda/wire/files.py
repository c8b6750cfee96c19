"""Files between a worker and the shared storage. A reply holds its result or an error, not both."""

from typing import Annotated

from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, Many, Message, OptionalMessage


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
