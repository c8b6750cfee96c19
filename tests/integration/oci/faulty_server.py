"""A registry of the tests' own, for what a healthy one never does: answers are scripted per request."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from remuda.host.ports import listen
from tests.support.images import BuiltImage

HOST = "127.0.0.1"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


@dataclass(slots=True)
class FaultyServer:
    """Serves one image under any name, unless `before` answers first. Keeps every request it got."""

    port: int
    built: BuiltImage
    before: Handler | None = None
    honours_ranges: bool = True
    requests: list[web.Request] = field(default_factory=list)

    @property
    def reference(self) -> str:
        return f"{HOST}:{self.port}/some/image:v1"

    def asked(self, method: str, part: str) -> list[web.Request]:
        return [request for request in self.requests if request.method == method and part in request.path]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.before is not None and (answer := await self.before(request)) is not None:
            return answer
        blobs = {blob.digest: blob for blob in (self.built.manifest, self.built.config, *self.built.layers)}
        name = request.path.rpartition("/")[2]
        blob = self.built.manifest if "/manifests/" in request.path else blobs.get(name)
        if blob is None:
            return web.json_response({"errors": [{"message": "nothing here"}]}, status=404)
        begin = request.http_range.start or 0
        if begin and self.honours_ranges:
            size = len(blob.content)
            headers = {"Content-Range": f"bytes {begin}-{size - 1}/{size}"}
            return web.Response(body=blob.content[begin:], status=206, headers=headers)
        return web.Response(body=blob.content, content_type=blob.media_type)


@asynccontextmanager
async def faulty_server(built: BuiltImage, before: Handler | None = None) -> AsyncIterator[FaultyServer]:
    socket = listen(HOST, 0)
    server = FaultyServer(socket.getsockname()[1], built, before)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.SockSite(runner, socket).start()
        yield server
    finally:
        await runner.cleanup()
