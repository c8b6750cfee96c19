"""The client's side of the contract's section 7: keys, where an upload begins, and what follows from each
answer. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from remuda.core.errors import Invalid

_OK: Final = 200
_MISSING: Final = 404
_AGAIN: Final = (308, 416)  # 308 is no redirect here: there is more to come.


def model_key(tracking_key: str, path: str) -> str:
    """The key of a model's file; `path` is relative to the frontend's folder of models."""
    parts = PurePosixPath(path).parts
    if not tracking_key or not parts or path.startswith("/") or ".." in parts:
        raise Invalid(f"{path!r} is not a path below the folder of models")
    return f"models/{tracking_key}/{'/'.join(parts)}"


@dataclass(frozen=True, slots=True)
class RemoteState:
    """What a worker has of a file, as it answers HEAD."""

    size: int = 0
    sha256: str = ""  # Of a whole file.
    target: str = ""  # Of a partial one: what it is to become.
    local_path: str = ""


def remote_state(status: int, headers: Mapping[str, str]) -> RemoteState | None:
    """None: the worker refuses to say."""
    if status == _MISSING:
        return RemoteState()
    if status != _OK:
        return None
    size = headers.get("X-File-Size", "")
    return RemoteState(
        int(size) if size.isascii() and size.isdigit() else 0,
        headers.get("X-Content-SHA256", "").lower(),
        headers.get("X-Target-SHA256", "").lower(),
        headers.get("X-Local-Path", ""),
    )


def start_of(there: RemoteState, sha256: str, total: int) -> int:
    """Where the upload goes on."""
    return there.size if there.target == sha256 and there.size < total else 0


def is_again(status: int) -> bool:
    """Whether the worker wants to be asked what it has, and the rest then."""
    return status in _AGAIN
