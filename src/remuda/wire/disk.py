"""Model files on a node's disk, as admins see them and make room. Ours alone."""

from typing import Annotated

from pydantic import Field

from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, WHOLE, Many, Message, Uint64
from remuda.wire.nodes import TEXT_BYTES_MAX


class FileOnDisk(Message):
    """A file in the node's folder of models. `keep`: why it may not go to make room; empty: it may."""

    path: str
    size: Uint64 = 0
    fetched: bool = False  # By the node's own worker; else the fleet does not remove it to make room.
    used_ms: Annotated[Uint64, OMIT_EMPTY] = 0  # When a load needed it last, in ms since 1970; 0: not known.
    models: Annotated[Many[str], OMIT_EMPTY] = ()  # Configured or loaded models that need it.
    keep: Annotated[str, OMIT_EMPTY] = ""


class NodeDiskView(Message):
    """Frontend to admin: the model files that a node reports."""

    node: str
    files: Many[FileOnDisk] = ()
    fetched_bytes: Uint64 = 0  # Of those that its worker has fetched.
    budget: Annotated[str, OMIT_EMPTY] = ""  # For these; empty: no limit but the disk.
    budget_bytes: Annotated[Uint64 | None, OMIT_NONE] = None
    budget_manually_set: bool = False
    free_bytes: Annotated[Uint64 | None, OMIT_NONE] = None  # None: not known, or not checked.
    total_bytes: Annotated[Uint64, OMIT_EMPTY] = 0
    coming_bytes: Annotated[Uint64, OMIT_EMPTY] = 0  # Of files that are being copied there.


class FreeDiskBody(Message):
    """Admin to frontend: remove model files there that may go. Without `bytes`: what is over the budget."""

    bytes: Annotated[Annotated[int, Field(ge=1, le=2**62), WHOLE] | None, OMIT_NONE] = None
    dry_run: bool = False


class ModelOnDiskView(Message):
    """Files that go together; `name` is empty where no configured model needs them, and of what has come of a
    file that has no place yet."""

    name: str = ""
    size: Uint64 = 0
    used_ms: Annotated[Uint64, OMIT_EMPTY] = 0
    files: Many[str] = ()


class KeptOnDisk(Message):
    """A file that its worker did not remove after all."""

    path: str
    why: str = ""


class FreedDisk(Message):
    """Frontend to admin: what goes, in this order; with `dry_run` what would. The bytes are those that the
    worker has confirmed."""

    node: str
    dry_run: bool = False
    models: Many[ModelOnDiskView] = ()
    freed_bytes: Uint64 = 0
    kept: Annotated[Many[KeptOnDisk], OMIT_EMPTY] = ()
    refused: Annotated[str, OMIT_EMPTY] = ""  # Of a dry run: why so much cannot be freed.


class FilesBudgetBody(Message):
    """Admin to frontend: a share ("50%", "0.5") or an amount ("200GB", bytes) of disk; empty: no limit."""

    value: Annotated[str, Field(max_length=TEXT_BYTES_MAX)]


class FilesBudgetReply(Message):
    model_files_budget: str
