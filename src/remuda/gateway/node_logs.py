"""The backend logs of nodes, asked of each node's worker over its HTTP server, which may be a LocalAI one."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar
from urllib.parse import quote

import aiohttp
import anyio
import anyio.to_thread
from pydantic import BaseModel, SecretStr
from yarl import URL

from remuda.core import limits
from remuda.core.errors import Conflict, Invalid, NodeUnreachable, TooLarge, Unavailable
from remuda.core.hints import pasted
from remuda.core.reach import host_and_port
from remuda.fleet.model import Identification, Node
from remuda.host.outbound import NodeResolver
from remuda.wire.codec import decode
from remuda.wire.logs import LogLines, LogNames

_PATH: Final = "/v1/backend-logs"
_FAILED: Final = (aiohttp.ClientError, OSError, TimeoutError)
_OPEN: Final = aiohttp.ClientWSTimeout(ws_close=1.0)

B = TypeVar("B", bound=BaseModel)
TokenFor = Callable[[Node], SecretStr | None]
Tell = Callable[[str | None], Awaitable[None]]
"""Takes a frame as the worker sent it, or None when there was none for a while."""


class NodeLogs:
    """`token_for` gives what opens a node's HTTP server; None: nothing is asked for."""

    def __init__(self, token_for: TokenFor) -> None:
        self._token_for = token_for
        self._readers: set[anyio.CancelScope] = set()
        self._closed = False

    async def names(self, node: Node) -> LogNames:
        """The models with logs on the node."""
        return await self._get(node, "", LogNames)

    async def lines(self, node: Node, name: str, tail: int | None, stream: str | None) -> LogLines:
        """The newest lines of a model or a process key. Workers that know no filters get filtered here."""
        parameters = {"tail": None if tail is None else str(tail), "stream": stream}
        query = "&".join(f"{key}={value}" for key, value in parameters.items() if value is not None)
        lines = await self._get(node, f"/{quote(name, safe='')}{'?' if query else ''}{query}", LogLines)
        kept = [line for line in lines.root if stream is None or line.stream == stream]
        return LogLines(kept if tail is None else kept[max(0, len(kept) - tail) :])

    async def follow(self, node: Node, name: str, tell: Tell) -> None:
        """Tell every frame, from the one with the known lines on. Returns when this frontend stops; raises
        NodeUnreachable when the worker cannot be reached, or no longer."""
        url = _url(node, f"/{quote(name, safe='')}/ws")
        with self._a_reader():
            async with _session() as session, await self._connect(session, node, url) as socket:
                with suppress(anyio.EndOfStream):
                    while True:
                        await tell(await _next_frame(socket))
            raise NodeUnreachable(f"the worker of {node.name} closed the connection")

    def close(self) -> None:
        """End what is being followed: this frontend stops."""
        self._closed = True
        for scope in self._readers:
            scope.cancel()

    @contextmanager
    def _a_reader(self) -> Iterator[None]:
        if self._closed or len(self._readers) >= limits.LOG_READERS_MAX:
            raise Unavailable(
                f"{limits.LOG_READERS_MAX} logs are being followed through this frontend already",
                hint="close one of them, or try again later",
            )
        with anyio.CancelScope() as scope:
            self._readers.add(scope)
            try:
                yield
            finally:
                self._readers.discard(scope)

    async def _connect(
        self, session: aiohttp.ClientSession, node: Node, url: URL
    ) -> aiohttp.ClientWebSocketResponse:
        try:
            with anyio.fail_after(limits.NODE_LOGS_S):
                return await session.ws_connect(
                    url,
                    headers=self._headers(node),
                    heartbeat=limits.LOG_SOCKET_PING_S,
                    max_msg_size=limits.NODE_LOGS_BYTES_MAX,
                    timeout=_OPEN,
                )
        except aiohttp.WSServerHandshakeError as error:
            raise _refused(node, error.status) from error
        except _FAILED as error:
            raise _unreachable(node, error) from error

    async def _get(self, node: Node, path: str, kind: type[B]) -> B:
        try:
            with anyio.fail_after(limits.NODE_LOGS_S):
                async with (
                    _session() as session,
                    session.get(
                        _url(node, path), headers=self._headers(node), allow_redirects=False
                    ) as reply,
                ):
                    if reply.status != 200:
                        raise _refused(node, reply.status)
                    body = await _body(reply)
        except _FAILED as error:
            raise _unreachable(node, error) from error
        try:
            return await anyio.to_thread.run_sync(_decoded, kind, body)
        except (Invalid, TooLarge) as error:
            raise NodeUnreachable(
                f"the worker of {node.name} sent logs that cannot be read: {error}"
            ) from error

    def _headers(self, node: Node) -> dict[str, str]:
        token = self._token_for(node)
        return {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}


def _session() -> aiohttp.ClientSession:
    """It carries the node's token, so what the node's name resolves to is checked before it connects."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=NodeResolver()))


async def _next_frame(socket: aiohttp.ClientWebSocketResponse) -> str | None:
    """None when there was none for a while; EndOfStream when there will be none any more."""
    try:
        message = await socket.receive(timeout=limits.LOG_STREAM_ALIVE_S)
    except TimeoutError:
        return None
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise anyio.EndOfStream
    return str(message.data)


async def _body(reply: aiohttp.ClientResponse) -> bytes:
    """One byte more than allowed at most, which the codec then refuses."""
    body = bytearray()
    async for chunk in reply.content.iter_any():
        body += chunk
        if len(body) > limits.NODE_LOGS_BYTES_MAX:
            break
    return bytes(body)


def _decoded(kind: type[B], body: bytes) -> B:
    return decode(kind, body, bytes_max=limits.NODE_LOGS_BYTES_MAX)


def _url(node: Node, path: str) -> URL:
    if not node.approved:
        raise Conflict(
            f"{node.name} is waiting for approval, so its logs are not fetched",
            hint=f"approve it with remuda nodes approve {pasted(node.name)}",
        )
    parts = host_and_port(node.http_address)
    if parts is None:
        raise Conflict(
            f"{node.name} has given no usable address (HOST:PORT) of its HTTP server, which has the logs"
        )
    host, port = parts
    return URL(f"http://{f'[{host}]' if ':' in host else host}:{port}{_PATH}{path}", encoded=True)


def _refused(node: Node, status: int) -> NodeUnreachable:
    if status == 401:
        return NodeUnreachable(
            f"the worker of {node.name} refused this frontend's token (HTTP 401)",
            hint=_token_hint(node),
        )
    return NodeUnreachable(f"the worker of {node.name} answered HTTP {status} when asked for its logs")


def _token_hint(node: Node) -> str:
    if node.identified_by is Identification.INVITE:
        return f"start it again with the token of its invite: remuda nodes invite {pasted(node.name)}"
    setting = node.setting("--token", "LOCALAI_REGISTRATION_TOKEN")
    return f"start the worker again with this frontend's registration token in {setting}"


def _unreachable(node: Node, error: BaseException) -> NodeUnreachable:
    why = f"no answer within {limits.NODE_LOGS_S:.0f} s" if isinstance(error, TimeoutError) else str(error)
    return NodeUnreachable(
        f"the HTTP server of {node.name} at {node.http_address} cannot be reached ({why})",
        hint="check that its worker runs and that this port is open to the frontend",
    )
