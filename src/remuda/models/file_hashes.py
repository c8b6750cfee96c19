"""SHA-256 of files on this machine, read in a thread and remembered, also by the next process, for as long as
a file is the same one: by device, inode, size and time of modification."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.from_thread import check_cancelled
from anyio.to_thread import run_sync
from pydantic import TypeAdapter, ValidationError

from remuda.core.errors import NotFound, Unavailable
from remuda.core.os_errors import os_reason

log = structlog.get_logger(__name__)

_KNOWN_MAX: Final = 20_000
_READ_BYTES: Final = 4 << 20
_AT_ONCE_MAX: Final = 2  # Files: more only make the disk seek.
_TELL_EVERY_S: Final = 0.5
_KNOWN: Final = TypeAdapter(dict[str, str])
OnHashed = Callable[[int], None]


class FileHashes:
    """`kept` is the file in which they are remembered; None: only in memory."""

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        self._known: dict[str, str] | None = None
        self._turns: dict[str, anyio.Lock] = {}
        self._threads: anyio.CapacityLimiter | None = None

    async def of(self, path: Path, on_bytes: OnHashed = lambda _: None) -> str:
        """In hexadecimal. `on_bytes` gets now and then how much was read; others who ask for the same
        file wait. NotFound or Unavailable when it cannot be read."""
        turn = self._turns.setdefault(str(path), anyio.Lock())
        async with turn:
            identity = await run_sync(_identity, path)
            known = await self._recalled()
            if identity not in known:
                known[identity] = await self._read(path, identity, on_bytes)
                await run_sync(self._keep)
            return known[identity]

    def recalled(self, path: Path) -> str:
        """What is known without reading it; empty: nothing. Blocks on the disk."""
        try:
            return (self._known or {}).get(_identity(path), "")
        except NotFound:
            return ""

    async def _recalled(self) -> dict[str, str]:
        if self._known is None:
            self._known = await run_sync(self._load)
        return self._known

    async def _read(self, path: Path, identity: str, on_bytes: OnHashed) -> str:
        reading = _Reading(path)
        self._threads = self._threads or anyio.CapacityLimiter(_AT_ONCE_MAX)
        found = ""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_tell, reading, on_bytes)
            try:
                found = await run_sync(reading.hash, limiter=self._threads)
            except OSError as error:
                reading.trouble = os_reason(error)
            tasks.cancel_scope.cancel()
        if not found:
            raise Unavailable(f"{path} cannot be read: {reading.trouble}")
        if await run_sync(_identity, path) != identity:
            raise Unavailable(f"{path} changed while it was read", hint="try again when it is complete")
        return found

    def _load(self) -> dict[str, str]:
        if self._kept is None:
            return {}
        try:
            return _KNOWN.validate_json(self._kept.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:  # They are computed again.
            log.warning("file_hashes_not_read", path=str(self._kept), error=type(error).__name__)
            return {}

    def _keep(self) -> None:
        if self._kept is None or self._known is None:
            return
        latest = dict(list(self._known.items())[-_KNOWN_MAX:])
        try:
            with tempfile.NamedTemporaryFile("w", dir=self._kept.parent, delete=False) as file:
                json.dump(latest, file)
            os.replace(file.name, self._kept)
        except OSError as error:
            log.warning("file_hashes_not_kept", path=str(self._kept), reason=os_reason(error))


class _Reading:
    """Of one file, in a thread; `done` can be looked at meanwhile."""

    def __init__(self, path: Path) -> None:
        self.done = 0
        self.trouble = ""
        self._path = path

    def hash(self) -> str:
        state = hashlib.sha256()
        with self._path.open("rb", buffering=0) as file:
            while chunk := file.read(_READ_BYTES):
                check_cancelled()
                state.update(chunk)
                self.done += len(chunk)
        return state.hexdigest()


async def _tell(reading: _Reading, on_bytes: OnHashed) -> None:
    while True:
        await anyio.sleep(_TELL_EVERY_S)
        on_bytes(reading.done)


def _identity(path: Path) -> str:
    try:
        facts = path.stat()
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {os_reason(error)}") from error
    return f"{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}"
