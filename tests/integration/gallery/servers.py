"""A small HTTP server on loopback that answers as a test scripts it, and remembers what it was asked."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    address: str = ""
    routes: dict[str, Handler] = field(default_factory=dict)
    asked: list[web.BaseRequest] = field(default_factory=list)

    def url(self, path: str = "/index.yaml") -> str:
        return self.address + path

    def serve(self, content: bytes, path: str = "/index.yaml", *, etag: str = "", modified: str = "") -> None:
        """Conditional requests are answered with 304 while validators match."""
        validators = {"ETag": etag, "Last-Modified": modified}
        headers = {name: value for name, value in validators.items() if value}

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            same_tag = etag and request.headers.get("If-None-Match") == etag
            same_time = modified and request.headers.get("If-Modified-Since") == modified
            if same_tag or same_time:
                return web.Response(status=304)
            return web.Response(body=content, headers=headers)

        self.routes[path] = answer

    def fail(self, status: int = 500, path: str = "/index.yaml") -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=status)

        self.routes[path] = answer

    def redirect(self, location: str, path: str = "/index.yaml") -> None:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=302, headers={"Location": location})

        self.routes[path] = answer

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request)
        handler = self.routes.get(request.path)
        return web.Response(status=404) if handler is None else await handler(request)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    runner = web.ServerRunner(web.Server(server._answer), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.address = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()
