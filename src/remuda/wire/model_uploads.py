"""Files of models that are uploaded to a frontend, for its own screens and commands. How they are uploaded is
the tus protocol's to say, whose messages are headers."""

from typing import Annotated

from remuda.wire.codec import OMIT_EMPTY, Many, Message, Timestamp, Uint64


class UploadedFileView(Message):
    """One file of a model, and how much of it has arrived."""

    id: str
    url: str  # Where HEAD, PATCH and DELETE are sent.
    path: str  # Below the model's own folder.
    size: Uint64 = 0
    offset: Uint64 = 0
    sha256: Annotated[str, OMIT_EMPTY] = ""  # As it was announced.


class ModelUploadView(Message):
    """The files of one model. `source` installs it, once it is complete."""

    upload: str
    source: str
    complete: bool = False
    expires_at: Timestamp | None = None  # If nothing is uploaded or installed until then.
    files: Many[UploadedFileView] = ()


class ModelUploadViews(Message):
    uploads: Many[ModelUploadView] = ()
