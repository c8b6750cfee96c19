"""Output of processes as it is kept: the newest in memory, more of it in files, a folder for each process
key.

In memory it stays as it came, in blocks of whole lines, and is split when it is read: a flood
costs a copy and a count. Files block on the disk, a page at a time; trouble with them costs log lines and
is never raised.
"""

import hashlib
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import structlog

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.wire.process_keys import ProcessKey


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class OutputLine:
    timestamp: datetime  # When its end arrived.
    stream: OutputStream
    text: str
    approximate: bool = False  # It arrived at `timestamp` or earlier.


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines that arrived together; `body` ends with a line break."""

    timestamp: datetime
    stream: OutputStream
    body: bytes
    lines: int
    approximate: bool = False  # They arrived at `timestamp` or earlier.

    @classmethod
    def of(
        cls, timestamp: datetime, stream: OutputStream, body: bytes, *, approximate: bool = False
    ) -> "Block":
        return cls(timestamp, stream, body, body.count(b"\n"), approximate)

    def newest(self, count: int) -> list[OutputLine]:
        """Up to `count` lines from its end, in order. Splits no more than that."""
        pieces = self.body[:-1].rsplit(b"\n", count)
        whole = pieces if len(pieces) <= count else pieces[1:]
        texts = [text for piece in whole for text in _texts(piece)]
        return [OutputLine(self.timestamp, self.stream, text, self.approximate) for text in texts[-count:]]


def _texts(line: bytes) -> Iterator[str]:
    """A line as a terminal would leave it: progress bars write over themselves with carriage returns."""
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    for start in range(0, max(len(shown), 1), limits.LOG_LINE_BYTES_MAX):
        yield shown[start : start + limits.LOG_LINE_BYTES_MAX].decode(errors="replace")


class Recent:
    """The newest blocks within a bound on lines and one on bytes. The oldest go first."""

    def __init__(self, lines_max: int, bytes_max: int) -> None:
        self._lines_max = lines_max
        self._bytes_max = bytes_max
        self._blocks: deque[Block] = deque()
        self._lines = 0
        self._bytes = 0

    def add(self, block: Block) -> int:
        """Returns how many unread lines had to go for it, some of its own perhaps included."""
        kept = self._shortened(block)
        self._blocks.append(kept)
        self._lines += kept.lines
        self._bytes += len(kept.body)
        dropped = block.lines - kept.lines
        while self._spare_first():
            dropped += self.take().lines
        return dropped

    def take(self) -> Block:
        """The oldest block, which is no longer kept. There must be one."""
        oldest = self._blocks.popleft()
        self._lines -= oldest.lines
        self._bytes -= len(oldest.body)
        return oldest

    def newest(self, count: int, stream: OutputStream | None = None) -> list[OutputLine]:
        """Up to `count` lines from the end, in order of arrival; only of `stream` where one is named."""
        parts: list[list[OutputLine]] = []
        for block in self._newest_blocks(stream):
            if count <= 0:
                break
            parts.append(block.newest(count))
            count -= len(parts[-1])
        return [line for part in reversed(parts) for line in part]

    def __len__(self) -> int:
        """Blocks, not lines."""
        return len(self._blocks)

    def _newest_blocks(self, stream: OutputStream | None) -> Iterable[Block]:
        return (block for block in reversed(self._blocks) if stream in (None, block.stream))

    def _spare_first(self) -> bool:
        if len(self._blocks) < 2:
            return False
        return self._lines - self._blocks[0].lines >= self._lines_max or self._bytes > self._bytes_max

    def _shortened(self, block: Block) -> Block:
        if len(block.body) <= self._bytes_max:
            return block
        end = block.body[-self._bytes_max :]
        # Begins with a whole line if there is one.
        whole = end[end.find(b"\n", 0, -1) + 1 :]
        return Block.of(block.timestamp, block.stream, whole, approximate=block.approximate)


log = structlog.get_logger(__name__)

_NAME_CHARS_MAX: Final = 200  # File systems allow 255 bytes.
_HEAD_CHARS: Final = 120  # Of a key that is too long for a name.
_CUT: Final = "~"  # No escaped key holds one.
_KEY_FILE: Final = "key"
_OWNER_ONLY: Final = 0o600
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def folder_name(key: ProcessKey) -> str:
    """A name for the key's folder, different for every key, whatever characters it holds."""
    text = str(key)
    name = quote(text, safe="", errors="surrogatepass").replace("~", "%7E")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) <= _NAME_CHARS_MAX:
        return name
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{re.sub('%[0-9A-F]?$', '', name[:_HEAD_CHARS])}{_CUT}{digest}"


def key_of(folder: Path) -> ProcessKey | None:
    """The key whose folder this is; None when it is none of ours."""
    try:
        if _CUT in folder.name:
            text = (folder / _KEY_FILE).read_bytes().decode(errors="surrogatepass")
        else:
            text = unquote(folder.name, errors="surrogatepass")
    except (OSError, UnicodeDecodeError):
        return None
    key = ProcessKey.parse(text)
    return key if key is not None and folder_name(key) == folder.name else None


class KeyFolder:
    """The files of one key."""

    def __init__(self, parent: Path, key: ProcessKey, clock: Clock) -> None:
        self._path = parent / folder_name(key)
        self._key = key
        self._files = {
            stream: RotatedFile(self._path / f"{stream}.log", clock, self._make) for stream in OutputStream
        }

    def write(self, stream: OutputStream, data: bytes) -> None:
        self._files[stream].write(data)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def remove(self) -> None:
        self.close()
        shutil.rmtree(self._path, ignore_errors=True)

    def ends(self) -> list[Block]:
        """What the files end with, oldest first. Lines bear the time at which their file was last written."""
        found = [block for stream, file in self._files.items() if (block := file.end(stream)) is not None]
        return sorted(found, key=lambda block: block.timestamp)

    def written_at(self) -> datetime | None:
        """When any of the files was last written; None while there are none."""
        return max(
            (at for file in self._files.values() if (at := file.written_at()) is not None), default=None
        )

    def _make(self) -> None:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _CUT in self._path.name:
            (self._path / _KEY_FILE).write_bytes(str(self._key).encode(errors="surrogatepass"))


class RotatedFile:
    """One stream's file. What is older than two generations, or came while the disk was full, is lost."""

    def __init__(self, path: Path, clock: Clock, make_folder: Callable[[], None]) -> None:
        self._path = path
        self._older = path.with_name(f"{path.name}.1")
        self._clock = clock
        self._make_folder = make_folder
        self._descriptor: int | None = None
        self._size = 0
        self._lost = 0
        self._retry_at = 0.0

    def write(self, data: bytes) -> None:
        if self._lost and self._clock.monotonic() < self._retry_at:
            self._lost += len(data)
            return
        try:
            self._put(data[-limits.LOG_FILE_BYTES_MAX :])
        except OSError as error:
            self._stumbled(len(data), error)
        else:
            self._recovered()

    def close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def written_at(self) -> datetime | None:
        try:
            return datetime.fromtimestamp(self._path.stat().st_mtime, UTC)
        except OSError:
            return None

    def end(self, stream: OutputStream) -> Block | None:
        at = self.written_at()
        if at is None:
            return None
        newer = _last_bytes(self._path)
        missing = limits.LOG_KEPT_BYTES_MAX - len(newer)
        body = (_last_bytes(self._older)[-missing:] if missing else b"") + newer
        if len(body) >= limits.LOG_KEPT_BYTES_MAX:
            body = body[body.find(b"\n") + 1 :]  # The first line is not whole.
        whole = body if body.endswith(b"\n") else body + b"\n"
        return Block.of(at, stream, whole, approximate=True) if body else None

    def _put(self, data: bytes) -> None:
        if self._descriptor is not None and self._size + len(data) > limits.LOG_FILE_BYTES_MAX:
            self._rotate()
        descriptor = self._descriptor if self._descriptor is not None else self._open()
        written = os.write(descriptor, data)
        self._size += written
        if written < len(data):
            raise OSError("only a part of it could be written")

    def _open(self) -> int:
        self._make_folder()
        self._descriptor = os.open(self._path, _FLAGS, _OWNER_ONLY)
        self._size = os.fstat(self._descriptor).st_size
        return self._descriptor

    def _rotate(self) -> None:
        self.close()
        with suppress(FileNotFoundError):  # It was tidied up.
            self._path.replace(self._older)

    def _stumbled(self, count: int, error: OSError) -> None:
        if not self._lost:
            log.warning("log_file_not_written", file=str(self._path), error=str(error))
        self._lost += count
        self._retry_at = self._clock.monotonic() + limits.LOG_FILE_RETRY_S
        self.close()

    def _recovered(self) -> None:
        if self._lost:
            log.info("log_file_written_again", file=str(self._path), bytes_lost=self._lost)
            self._lost = 0


def _last_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - limits.LOG_KEPT_BYTES_MAX))
            return handle.read(limits.LOG_KEPT_BYTES_MAX)
    except OSError:
        return b""
