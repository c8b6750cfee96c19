"""The HTTP server of a worker as LocalAI's wire contract describes it, as far as it tells of backend logs.

It knows nothing of ours. Everything but the probes needs the token that its worker was started with.
"""

import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

_LOGS = "/v1/backend-logs"
_LINES_MAX = 1000


class FileServer:
    """Use `serving`. Lines are kept by process key, such as `model#0`."""

    def __init__(self, token: str) -> None:
        self.address = ""
        self._token = token
        self._lines: dict[str, list[dict[str, str]]] = {}
        self._readers: dict[ServerConnection, str] = {}

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1") -> AsyncIterator[None]:
        async with serve(self._follow, host, 0, process_request=self._answer, origins=None) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            self.address = f"{host}:{port}"
            yield

    def say(self, key: str, stream: str, text: str) -> None:
        """A backend wrote this line."""
        line = {"timestamp": datetime.now(UTC).isoformat(), "stream": stream, "text": text}  # noqa: TID251
        kept = self._lines.setdefault(key, [])
        kept.append(line)
        del kept[:-_LINES_MAX]
        readers = [reader for reader, name in self._readers.items() if _is_of(key, name)]
        broadcast(readers, json.dumps({"type": "line", "line": line}))

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """None leaves the request to `_follow`."""
        path = urlsplit(request.path).path
        if path in ("/healthz", "/readyz"):
            return connection.respond(200, "ok")
        given = request.headers.get("Authorization", "")
        if self._token and not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return connection.respond(401, "unauthorized")
        if path == _LOGS:
            return _json(sorted({key.partition("#")[0] for key in self._lines}))
        if not path.startswith(f"{_LOGS}/"):
            return connection.respond(404, "not found")
        return None if path.endswith("/ws") else _json(self._lines_of(_name(path)))

    async def _follow(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        name = _name(urlsplit(connection.request.path).path.removesuffix("/ws"))
        await connection.send(json.dumps({"type": "initial", "lines": self._lines_of(name)}))
        self._readers[connection] = name
        try:
            await connection.wait_closed()
        finally:
            del self._readers[connection]

    def _lines_of(self, name: str) -> list[dict[str, str]]:
        found = [line for key, lines in self._lines.items() if _is_of(key, name) for line in lines]
        return sorted(found, key=lambda line: line["timestamp"])


def _is_of(key: str, name: str) -> bool:
    return name in (key, key.partition("#")[0])


def _name(path: str) -> str:
    return unquote(path.removeprefix(f"{_LOGS}/"))


def _json(document: object) -> Response:
    body = json.dumps(document).encode()
    headers = Headers(
        {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    )
    return Response(200, "OK", headers, body)
