"""The client's side of the contract's section 7: where an upload begins, what follows from each
answer, and bounds. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from remuda.core.retry import Backoff

# What moves bytes is never cut off.
CONNECT_S: Final = 10.0
STALL_S: Final = 60.0  # Of one request: a worker that takes no byte for so long.
ANSWER_S: Final = 60.0  # For an answer; a worker that must read a file for it gets more.
ANSWER_S_PER_GIB: Final = 20.0
WITHOUT_PROGRESS_S: Final = 300.0  # A push that gets no further for so long is given up.
BACKOFF: Final = Backoff(first=timedelta(seconds=1), most=timedelta(seconds=30), jitter=0.2)
READ_BYTES: Final = 1 << 20
ANSWER_BYTES_MAX: Final = 64 << 10
WORDS_CHARS_MAX: Final = 300
CONNECTIONS_MAX: Final = 64

_OK: Final = 200
_MISSING: Final = 404
_AGAIN: Final = (308, 416)  # 308 is no redirect here: there is more to come.


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
    """The offset at which the upload resumes."""
    return there.size if there.target == sha256 and there.size < total else 0


def is_again(status: int) -> bool:
    """Whether the worker wants to be asked what it has, and the rest then."""
    return status in _AGAIN
