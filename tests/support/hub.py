"""Servers that models come from, on loopback: plain files with ranges, and a package index.

What a healthy server never does is switched on by attributes: connections that break, slowness, versions that
change, pages in place of files.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from aiohttp import web

from remuda.host.ports import listen

HOST = "127.0.0.1"
_PIECE_BYTES = 32 << 10
Handler = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


@dataclass(slots=True)
class ServedFile:
    content: bytes
    etag: str = ""
    content_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class HubServer:
    """Serves `files` by path, unless `before` answers first. Keeps every request it got."""

    port: int
    files: dict[str, ServedFile] = field(default_factory=dict)
    before: Handler | None = None
    break_after: int | None = None
    """Bytes of a body after which its connection is cut."""
    bytes_per_s: float | None = None
    ranges: bool = True
    requests: list[web.Request] = field(default_factory=list)
    bytes_sent: int = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def add(self, path: str, content: bytes, *, etag: str | None = None, content_type: str = "") -> str:
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"' if etag is None else etag
        self.files[path] = ServedFile(content, tag, content_type or "application/octet-stream")
        return f"{self.url}{path}"

    def asked(self, method: str, part: str = "") -> list[web.Request]:
        return [request for request in self.requests if request.method == method and part in request.path]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.before is not None and (answer := await self.before(request)) is not None:
            return answer
        served = self.files.get(request.path)
        if served is None:
            return web.Response(status=404, text="nothing here")
        return await self.send(request, served)

    async def send(self, request: web.Request, served: ServedFile) -> web.StreamResponse:
        """The file, or the part of it that is asked for and still what the asker began with."""
        size = len(served.content)
        headers = {"Content-Type": served.content_type, **served.headers}
        if served.etag:
            headers["ETag"] = served.etag
        begin, end, status = 0, size, 200
        same = request.headers.get("If-Range") in (None, served.etag)
        if self.ranges and "Range" in request.headers and same:
            begin, end, status = *_bounds(request, size), 206
            if begin >= size:
                return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = end - begin
        await response.prepare(request)
        if request.method != "HEAD":
            await self._write(request, response, served.content[begin:end])
        return response

    async def _write(self, request: web.Request, response: web.StreamResponse, body: bytes) -> None:
        until = len(body) if self.break_after is None else min(len(body), self.break_after)
        piece = _PIECE_BYTES if self.bytes_per_s is not None else 256 << 10
        for begin in range(0, until, piece):
            part = body[begin : min(begin + piece, until)]
            await response.write(part)
            self.bytes_sent += len(part)
            if self.bytes_per_s is not None:
                await anyio.sleep(len(part) / self.bytes_per_s)
        if until < len(body) and request.transport is not None:
            request.transport.close()


def _bounds(request: web.Request, size: int) -> tuple[int, int]:
    wanted = request.http_range
    if wanted.start is not None and wanted.start < 0:
        return max(size + wanted.start, 0), size
    return wanted.start or 0, min(wanted.stop or size, size)


@asynccontextmanager
async def hub_server() -> AsyncIterator[HubServer]:
    socket = listen(HOST, 0)
    server = HubServer(socket.getsockname()[1])
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.SockSite(runner, socket).start()
        yield server
    finally:
        await runner.cleanup()
