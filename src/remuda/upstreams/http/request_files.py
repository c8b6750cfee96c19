"""The files of one request on the worker of its replica: inputs are put there, outputs are fetched, and both
are removed when the request is over. By HTTP, as the contract's sections 7.2 and 7.4 have it, also where a
fleet shares object storage: each of its workers has this server, and no request waits for the bus.
"""

import hashlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid
from remuda.core.tasks import TaskOwner
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.media_requests import FILES_MAX, InputFile
from remuda.inference.model import ReplicaEndpoint
from remuda.upstreams.http.client import HttpTimeouts, Pool, ServerAddress, body_of

log = structlog.get_logger(__name__)

INPUT_BYTES_MAX: Final = 1 << 30  # Of one file; what clients may send has a bound of its own.
OUTPUT_BYTES_MAX: Final = 1 << 30
SILENCE_S: Final = 60.0  # For a worker to take one piece, to begin an answer, or between two parts of it.
PIECE_BYTES: Final = 1 << 20  # Sent in the first request: slow is not to look like stuck.
PIECE_BYTES_MIN: Final = 64 << 10  # At 1.1 kB/s such a piece still arrives before the silence is over.
PIECE_BYTES_MAX: Final = 4 << 20
_QUICK_S: Final = 2.0  # A piece that took no longer is followed by a larger one,
_SLOW_S: Final = 15.0  # and one that took longer by a smaller one.
FAILURES_MAX: Final = 3  # In a row, without a byte arriving in between.
REMOVAL_S: Final = 20.0  # For all files of a request; what is left the worker sweeps after a day.

_HASHED_AT_ONCE_BYTES: Final = 256 << 10  # Takes less than a millisecond.
_ANSWER_BYTES_MAX: Final = 64 << 10
_WORDS_MAX: Final = 300
_PATH_MAX: Final = 4096
_FILES: Final = "/v1/files/"
_TEMP: Final = "/v1/files/temp"
_ENDING: Final = re.compile(r"\.[A-Za-z0-9]{1,12}", re.ASCII)
_OK: Final = 200
_AGAIN: Final = (308, 416)  # 308 is no redirect here: there is more to come.
_SHUT: Final = (401, 403)
_REMOVED: Final = (200, 204, 404)

TIMEOUTS: Final = HttpTimeouts(whole_s=SILENCE_S, silence_s=SILENCE_S)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def words(self) -> str:
        reply = self.body.decode(errors="replace").strip()[:_WORDS_MAX]
        return f"HTTP {self.status}: {reply}" if reply else f"HTTP {self.status}"


class RequestFiles:
    """Safe to share between requests. Removal continues in `tasks` after the request."""

    def __init__(self, pool: Pool, entropy: Entropy, tasks: TaskOwner) -> None:
        self._pool = pool
        self._entropy = entropy
        self._tasks = tasks

    @asynccontextmanager
    async def opened(self, server: ReplicaEndpoint | None) -> AsyncIterator["FilesOnWorker"]:
        """Files on the worker with this HTTP server; all of them are removed after the block, however it
        ends."""
        if server is None:
            raise _not_reached(
                "the replica's worker has given no address of its HTTP server, which takes files of requests",
                "set --advertise-http-addr on that worker",
            )
        there = FilesOnWorker(self._pool, server, self._entropy)
        try:
            yield there
        finally:
            if there.keys:
                await self._remove(there)

    async def _remove(self, there: "FilesOnWorker") -> None:
        if self._tasks.is_open:
            self._tasks.start(there.remove_all)
        else:
            with anyio.CancelScope(shield=True):
                await there.remove_all()


@dataclass(slots=True)
class FilesOnWorker:
    """Of one request. UpstreamFailed, before the replica has seen the request, where they cannot be put."""

    _pool: Pool
    _server: ReplicaEndpoint
    _entropy: Entropy
    keys: list[str] = field(default_factory=list)

    async def put(self, file: InputFile) -> str:
        """Have the file there, and return its path on the worker."""
        size = len(file.content)
        if not 0 < size <= INPUT_BYTES_MAX:
            raise Invalid(f"a file of a request has 1 to {INPUT_BYTES_MAX} bytes, and this one {size}")
        self._check_count()
        key = f"ephemeral/inputs/{self._entropy.uuid()[:8]}/{self._name(file.name)}"
        self.keys.append(key)  # Before anything is there, so that whatever comes to be there is removed.
        return await self._send(key, memoryview(file.content))

    async def output(self) -> str:
        """The path of an empty file, for the backend to write to."""
        self._check_count()
        # Shielded: a file whose name was not read cannot be removed.
        with anyio.move_on_after(REMOVAL_S, shield=True):
            answer = await self._ask("POST", _TEMP)
            if answer.status != _OK:
                raise self._refusal("gives no place for an output", answer)
            path = self._local_path(answer.body)
            self.keys.append(PurePosixPath(path).name)
            return path
        raise _not_reached(f"{self._who} gave no place for an output within {REMOVAL_S:.0f} s")

    async def fetch(
        self, output: str, write: Callable[[bytes], Awaitable[None]], bytes_max: int = OUTPUT_BYTES_MAX
    ) -> None:
        """Pass on what the backend has written, at least one byte; of a longer file not the rest."""
        head = self._head("GET", _path_of(PurePosixPath(output).name))
        answer = await self._pool.exchange(self._address, head, b"")
        try:
            if answer.status != _OK:
                reply = _Answer(answer.status, {}, await body_of(answer, _ANSWER_BYTES_MAX))
                raise UpstreamFailed(Fault.BROKE, f"{self._who} does not give the output ({reply.words})")
            size = 0
            while piece := await answer.piece():
                size += len(piece)
                if size > bytes_max:
                    raise UpstreamFailed(Fault.FAILED, f"the output exceeds {bytes_max >> 20} MiB")
                await write(piece)
            if not size:
                raise UpstreamFailed(Fault.FAILED, "the backend said that it was done, and wrote no output")
        finally:
            self._pool.release(answer)

    async def whole(self, output: str, bytes_max: int) -> bytes:
        pieces = list[bytes]()

        async def keep(piece: bytes) -> None:
            pieces.append(piece)

        await self.fetch(output, keep, bytes_max)
        return b"".join(pieces)

    async def remove_all(self) -> None:
        """As far as it can be done soon."""
        with anyio.move_on_after(REMOVAL_S):
            for key in self.keys:
                try:
                    await self._remove(key)
                except UpstreamFailed as failure:
                    log.info(
                        "request_file_left", server=self._server.address, file=key, reason=failure.message
                    )

    async def _remove(self, key: str) -> None:
        """LocalAI's workers remove nothing: there the file is made empty, so that it takes no room."""
        if (await self._ask("DELETE", _path_of(key))).status not in _REMOVED:
            await self._ask("PUT", _path_of(key))

    def _check_count(self) -> None:
        if len(self.keys) >= FILES_MAX:
            raise Invalid(f"a request has at most {FILES_MAX} files")

    def _name(self, given: str) -> str:
        """No other request has it: the eight characters in the key are too few to be sure of that."""
        ending = PurePosixPath(given).suffix
        return f"{self._entropy.uuid()}{ending.lower() if _ENDING.fullmatch(ending) else ''}"

    async def _send(self, key: str, content: memoryview) -> str:
        small = len(content) <= _HASHED_AT_ONCE_BYTES
        sha256 = _hash(content) if small else await run_sync(_hash, content)
        start = failures = 0
        piece_bytes = PIECE_BYTES
        while True:
            arrived, trouble, began_s = None, None, anyio.current_time()
            try:
                answer = await self._send_piece(
                    key, content[start : start + piece_bytes], start, len(content), sha256
                )
            except UpstreamFailed as failure:
                trouble = failure
            else:
                if answer.status == _OK:
                    return self._local_path(answer.body)
                if answer.status not in _AGAIN:
                    raise self._refusal("does not take a file of the request", answer)
                arrived = _size(answer.headers)
            took_s = anyio.current_time() - began_s
            piece_bytes = next_piece_bytes(piece_bytes, None if trouble else took_s)
            if arrived is None or arrived >= len(content):
                arrived, path = await self._state(key, sha256)
                if path:
                    return path
            failures = 0 if start < arrived < len(content) else failures + 1
            if failures > FAILURES_MAX:
                raise trouble or _not_reached(f"{self._who} takes nothing more of a file")
            start = arrived if arrived < len(content) else 0

    async def _send_piece(
        self, key: str, piece: memoryview, start: int, whole_bytes: int, sha256: str
    ) -> _Answer:
        end = start + len(piece)
        ranged = (f"Content-Range: bytes {start}-{end - 1}/{whole_bytes}", f"X-Content-SHA256: {sha256}")
        return await self._ask("PUT", _path_of(key), piece, ranged)

    async def _state(self, key: str, sha256: str) -> tuple[int, str]:
        """How much has arrived; with the path when it is all."""
        try:
            answer = await self._ask("HEAD", _path_of(key))
        except UpstreamFailed:
            return 0, ""
        if answer.headers.get(b"x-content-sha256", b"").decode("latin-1").lower() == sha256:
            return 0, _checked_path(answer.headers.get(b"x-local-path", b"").decode("utf-8", "replace"))
        return _size(answer.headers), ""

    async def _ask(
        self, method: str, path: str, body: memoryview | bytes = b"", more: tuple[str, ...] = ()
    ) -> _Answer:
        """Before the replica has seen the request: whatever fails, another one may have it."""
        head = self._head(method, path, len(body), more)
        try:
            answer = await self._pool.exchange(self._address, head, bytes(body))
            try:  # The answer to HEAD has a length and no body: its connection is not used again.
                reply = b"" if method == "HEAD" else await body_of(answer, _ANSWER_BYTES_MAX)
                return _Answer(answer.status, dict(answer.headers), reply)
            finally:
                self._pool.release(answer)
        except UpstreamFailed as failure:
            raise _not_reached(
                f"{self._who} cannot be sent files of requests: {failure.message}"
            ) from failure

    def _head(self, method: str, path: str, length: int = 0, more: tuple[str, ...] = ()) -> bytes:
        token = self._server.token
        lines = (
            f"{method} {path} HTTP/1.1",
            f"Host: {self._server.address}",
            *((f"Authorization: Bearer {token}",) if token else ()),
            *(("Content-Type: application/octet-stream",) if length else ()),
            *((f"Content-Length: {length}",) if method in ("PUT", "POST") else ()),
            *more,
        )
        return "\r\n".join((*lines, "", "")).encode()

    @property
    def _address(self) -> ServerAddress:
        return ServerAddress.parsed(self._server.address)

    @property
    def _who(self) -> str:
        return f"the worker at {self._server.address}"

    def _refusal(self, what: str, answer: _Answer) -> UpstreamFailed:
        hint = "check the token that its worker was started with" if answer.status in _SHUT else ""
        return _not_reached(f"{self._who} {what} ({answer.words})", hint)

    def _local_path(self, body: bytes) -> str:
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        path = document.get("local_path") if isinstance(document, dict) else None
        if found := _checked_path(path if isinstance(path, str) else ""):
            return found
        raise _not_reached(f"{self._who} does not say where the file is")


def next_piece_bytes(piece_bytes: int, took_s: float | None) -> int:
    """How much to send in the next request. `took_s` is of the last one; None: it failed."""
    if took_s is None or took_s > _SLOW_S:
        return max(piece_bytes // 4, PIECE_BYTES_MIN)
    return min(piece_bytes * 2, PIECE_BYTES_MAX) if took_s <= _QUICK_S else piece_bytes


def _not_reached(message: str, hint: str = "") -> UpstreamFailed:
    return UpstreamFailed(Fault.UNREACHABLE, message, hint=hint, unsent=True)


def _checked_path(path: str) -> str:
    """Empty for what cannot be the path of a file on the worker."""
    usable = path.startswith("/") and len(path) <= _PATH_MAX and path.isprintable() and not path.endswith("/")
    return path if usable else ""


def _path_of(key: str) -> str:
    return f"{_FILES}{quote(key, safe='/')}"


def _size(headers: Mapping[bytes, bytes]) -> int:
    size = headers.get(b"x-file-size", b"")
    return int(size) if size.isdigit() else 0


def _hash(content: memoryview) -> str:
    return hashlib.sha256(content).hexdigest()
