"""Pushes a file to a worker's file server, as the contract's section 7.4 has it: skipped when it is there,
resumed after any break, given up only when nothing moves any more."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import aiohttp
import anyio
import structlog
from anyio.to_thread import run_sync
from pydantic import SecretStr
from yarl import URL

from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid, NoAnswerYet, NodeUnreachable, PeerFailed
from remuda.core.os_errors import os_reason
from remuda.core.reach import host_and_port
from remuda.fleet.identity import NodeTokens
from remuda.fleet.model import Node
from remuda.host.outbound import NodeResolver
from remuda.staging import push_rules as limits
from remuda.staging.push_rules import RemoteState, is_again, remote_state, start_of
from remuda.wire.files import WantedFile, model_key

log = structlog.get_logger(__name__)

_BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError)
_OK: Final = 200
_UNAUTHORIZED: Final = 401
_SAFE: Final = "/:@+=,!$&'()*;~"

OnSize = Callable[[int], None]
"""Told how much of the file the worker has been sent, counting what it had."""


class FileRefused(PeerFailed):
    """The worker will not take the file; the same request brings the same answer."""

    code = "file_refused"
    retryable = False


@dataclass(frozen=True, slots=True)
class FileServerAddress:
    """A worker's HTTP server, and what opens it."""

    node: str  # For people.
    address: str  # HOST:PORT
    token: SecretStr | None = field(default=None, repr=False)

    def url(self, key: str) -> URL:
        parts = host_and_port(self.address)
        if parts is None:
            raise NodeUnreachable(f"{self.node} has given no usable address (HOST:PORT) of its HTTP server")
        host = f"[{parts[0]}]" if ":" in parts[0] else parts[0]
        return URL(f"http://{host}:{parts[1]}/v1/files/{quote(key, safe=_SAFE)}", encoded=True)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token.get_secret_value()}"}


@dataclass(frozen=True, slots=True)
class LocalFile:
    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PushedFile:
    local_path: str  # On the worker.
    sent_bytes: int  # In all attempts together; 0: it had the file.


class FilePusher:
    """Opened by `open_pusher`."""

    def __init__(
        self, session: aiohttp.ClientSession, entropy: Entropy, patience_s: float | None = None
    ) -> None:
        self._session = session
        self._entropy = entropy
        self._patience_s = patience_s

    async def push(
        self, file: LocalFile, server: FileServerAddress, key: str, on_size: OnSize = lambda _: None
    ) -> PushedFile:
        """Have the file on the worker. FileRefused when it will not take it, NodeUnreachable when nothing has
        moved for too long, Invalid when the file is no longer what it was said to be."""
        push = _Push(file, server, key, on_size, self._patience_s or limits.WITHOUT_PROGRESS_S)
        while True:
            push.clock = anyio.CancelScope()
            try:
                with push.clock:
                    done = await self._attempt(push)
                    if done:
                        return PushedFile(done, push.sent_bytes)
                push.trouble = "no answer in time" if push.clock.cancelled_caught else "it took only a part"
            except _BROKEN as error:
                push.trouble = _words(error)
            if push.failure is not None:
                raise push.failure
            push.check_patience()
            push.attempts += 1
            pause = limits.BACKOFF.delay(push.attempts, self._entropy.fraction()).total_seconds()
            log.info("push_interrupted", node=server.node, file=key, reason=push.trouble, again_in=pause)
            await anyio.sleep(pause)

    async def sha256(self, server: FileServerAddress, key: str, size: int) -> str:
        """Of a whole file that the worker has, which it reads if it has to. FileRefused when it has none of
        this size there, NodeUnreachable when it does not answer; NoAnswerYet while it may still be reading,
        with which it goes on."""
        try:
            with anyio.fail_after(_answered_within_s(size)):
                async with self._session.head(
                    server.url(key), headers=server.headers, allow_redirects=False
                ) as reply:
                    there = remote_state(reply.status, reply.headers)
        except _BROKEN as error:
            late = isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError)
            raise (NoAnswerYet if late else NodeUnreachable)(
                f"{server.node} at {server.address} does not say what {key} is: {_words(error)}",
                hint="check that its worker runs and that this port is open to the frontend",
            ) from error
        if there is None:
            raise FileRefused(f"{server.node} does not say what {key} is: HTTP {reply.status}")
        if not there.sha256 or there.size != size:
            raise FileRefused(f"{server.node} has no {key} of {size} bytes any more", hint="try again")
        return there.sha256

    async def _attempt(self, push: "_Push") -> str:
        """The path on the worker; empty: try again."""
        push.expect_answer()
        there = await self._state(push)
        if there.sha256 == push.file.sha256 and there.local_path:
            push.on_size(push.file.size)
            return there.local_path
        start = start_of(there, push.file.sha256, push.file.size)
        push.found(start)
        push.check_patience()
        headers = {
            **push.server.headers,
            "Content-Type": "application/octet-stream",
            "X-Content-SHA256": push.file.sha256,
            "Content-Length": str(push.file.size - start),
        }
        if push.file.size:
            headers["Content-Range"] = f"bytes {start}-{push.file.size - 1}/{push.file.size}"
        async with self._session.put(
            push.url, data=push.body(start), headers=headers, allow_redirects=False
        ) as reply:
            body = await _bounded(reply)
            if reply.status == _OK:
                return _local_path(push, body)
            if is_again(reply.status):
                return ""
            raise _refused(push, reply.status, body)

    async def _state(self, push: "_Push") -> RemoteState:
        async with self._session.head(push.url, headers=push.server.headers, allow_redirects=False) as reply:
            there = remote_state(reply.status, reply.headers)
            if there is None:
                raise _refused(push, reply.status, b"")
            return there


class _Push:
    """One file on its way, and how far it is."""

    def __init__(
        self, file: LocalFile, server: FileServerAddress, key: str, on_size: OnSize, patience_s: float
    ) -> None:
        self.file = file
        self._patience_s = patience_s
        self.server = server
        self.key = key
        self.url = server.url(key)
        self.on_size = on_size
        self.sent_bytes = 0
        self.trouble = ""
        self.failure: Invalid | None = None
        self.clock = anyio.CancelScope()  # Of the current attempt: its deadline moves with what happens.
        self.attempts = 0  # In a row that brought nothing.
        self._kept = -1
        self._kept_at = self._moved_at = anyio.current_time()

    def found(self, size: int) -> None:
        """So much the worker has. What was sent beyond it was lost on the way, and was no progress."""
        if size > self._kept:
            self._kept, self._kept_at, self.attempts = size, anyio.current_time(), 0
        self._moved_at = self._kept_at
        self.on_size(size)

    def check_patience(self) -> None:
        if anyio.current_time() - self._moved_at >= self._patience_s:
            raise NodeUnreachable(
                f"{self.key} cannot be sent to {self.server.node} at {self.server.address}: {self.trouble}; "
                f"nothing moved for {self._patience_s:.0f} s",
                hint="check that its worker runs and that this port is open to the frontend",
            )

    def expect_answer(self) -> None:
        """The worker may have to read the whole file before it answers."""
        self.clock.deadline = anyio.current_time() + _answered_within_s(self.file.size)

    async def body(self, start: int) -> AsyncIterator[bytes]:
        try:
            descriptor = await run_sync(os.open, self.file.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.failure = Invalid(f"{self.file.path} cannot be read: {os_reason(error)}")
            raise
        try:
            position = start
            while position < self.file.size:
                self.clock.deadline = anyio.current_time() + limits.STALL_S
                length = min(limits.READ_BYTES, self.file.size - position)
                data = await run_sync(os.pread, descriptor, length, position)
                if not data:
                    self.failure = Invalid(f"{self.file.path} is shorter than it was")
                    raise self.failure
                yield data  # Returns when the connection has room again.
                position += len(data)
                self.sent_bytes += len(data)
                self._moved_at = anyio.current_time()
                self.on_size(position)
        finally:
            os.close(descriptor)
        self.expect_answer()


@asynccontextmanager
async def open_pusher(entropy: Entropy, patience_s: float | None = None) -> AsyncIterator[FilePusher]:
    """Requests carry a node's token: redirects are not followed, and addresses are checked. `patience_s`: a
    push that gets no further for so long is given up."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=NodeResolver(), limit=limits.CONNECTIONS_MAX, force_close=True
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.CONNECT_S),
    ) as session:
        yield FilePusher(session, entropy, patience_s)


def _answered_within_s(size: int) -> float:
    return limits.ANSWER_S + limits.ANSWER_S_PER_GIB * size / (1 << 30)


async def _bounded(reply: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in reply.content.iter_any():
        body += chunk
        if len(body) > limits.ANSWER_BYTES_MAX:
            break
    return bytes(body[: limits.ANSWER_BYTES_MAX])


def _local_path(push: _Push, body: bytes) -> str:
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    path = document.get("local_path") if isinstance(document, dict) else None
    if not isinstance(path, str) or not path:
        raise FileRefused(f"{push.server.node} took {push.key}, and did not say where it is")
    return path


def _refused(push: _Push, status: int, body: bytes) -> FileRefused:
    answer_text = body.decode(errors="replace").strip()[: limits.WORDS_CHARS_MAX]
    words = f"HTTP {status}: {answer_text}" if answer_text else f"HTTP {status}"
    hint = "check the token that its worker was started with" if status == _UNAUTHORIZED else ""
    return FileRefused(f"{push.server.node} refused {push.key} ({words})", hint=hint)


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    cause = getattr(error, "os_error", None) or error.__cause__ or error
    return os_reason(cause) if isinstance(cause, OSError) else str(error) or type(error).__name__


class NodePush:
    """Implements scheduler.ports.FilePush."""

    def __init__(self, pusher: FilePusher, tokens: NodeTokens) -> None:
        self._pusher = pusher
        self._tokens = tokens

    async def push(
        self, node: Node, model: str, local: Path, file: WantedFile, on_size: Callable[[int], None]
    ) -> str:
        sent = LocalFile(local, file.size, file.sha256)
        return (
            await self._pusher.push(sent, self._server(node), model_key(model, file.path), on_size)
        ).local_path

    async def sha256(self, node: Node, path: str, size: int) -> str:
        return await self._pusher.sha256(self._server(node), f"models/{path}", size)

    def _server(self, node: Node) -> FileServerAddress:
        token = self._tokens.of(node).http
        return FileServerAddress(node.name, node.http_address, SecretStr(token) if token else None)
