"""Servers that models come from, on loopback: plain files with ranges, and a hub as Hugging Face is one.

What a healthy server never does is switched on by attributes: connections that break, slowness, versions that
change, pages in place of files.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from socket import socket as Socket

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
async def hub_server(at: Socket | None = None) -> AsyncIterator[HubServer]:
    """`at` is bound to its port, and refuses connections until the block begins."""
    socket = listen(HOST, 0) if at is None else at
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


COMMIT = "4f5c1a7d9e2b8c6a0d3e5f7a9b1c2d4e6f8a0b1c"
TOKEN = "hf_saddle"


@dataclass(slots=True)
class HubRepo:
    """A repository at one commit. Files above `lfs_from` bytes are kept in the other server."""

    files: dict[str, bytes]
    commit: str = COMMIT
    revisions: frozenset[str] = frozenset({"main", COMMIT})
    gated: bool = False
    private: bool = False
    lfs_from: int = 1_000


@dataclass(slots=True)
class HuggingFaceServer:
    """Answers as the hub does; large files are redirected to storage, which must not be shown the token."""

    hub: HubServer
    storage: HubServer
    repos: dict[str, HubRepo] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    page_size: int = 100
    busy: list[str] = field(default_factory=list)
    """Values of the RateLimit header with which the next requests are refused."""

    async def answer(self, request: web.Request) -> web.StreamResponse | None:
        if self.busy:
            return web.Response(status=429, headers={"RateLimit": self.busy.pop(0)})
        parts = request.path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        if api and parts[4:] == ["refs"]:
            held = self.repos["/".join(parts[2:4])]
            names = [{"name": name} for name in sorted(held.revisions - {held.commit})]
            return web.json_response({"branches": names, "tags": [], "converts": []})
        owner, name, _, revision, *path = parts[2:] if api else parts
        repo = f"{owner}/{name}"
        if repo in self.renamed:
            location = str(request.rel_url).replace(repo, self.renamed[repo])
            return web.Response(status=307, headers={"Location": location})
        refusal = self._refusal(request, repo, revision)
        if refusal is not None:
            return refusal
        held = self.repos[repo]
        return self._tree(request, held) if api else await self._file(request, held, "/".join(path))

    def _refusal(self, request: web.Request, repo: str, revision: str) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if given not in ("", f"Bearer {TOKEN}"):
            return web.Response(status=401, headers={"X-Error-Message": "Invalid credentials"})
        held = self.repos.get(repo)
        if held is None or (held.private and not given):
            status = 404 if given else 401  # Who has no token is not told which of the two it is.
            return _refused(status, "RepoNotFound", "Repository not found")
        if held.gated:
            return _refused(403 if given else 401, "GatedRepo", "Access to this model is restricted")
        if revision not in held.revisions:
            return _refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return None

    def _tree(self, request: web.Request, held: HubRepo) -> web.Response:
        begin = int(request.query.get("cursor", "0"))
        entries = [_entry(path, content, held) for path, content in sorted(held.files.items())]
        headers = {}
        if begin + self.page_size < len(entries):
            following = request.url.update_query(cursor=str(begin + self.page_size))
            headers["Link"] = f'<{following}>; rel="next"'
        return web.json_response(entries[begin : begin + self.page_size], headers=headers)

    async def _file(self, request: web.Request, held: HubRepo, path: str) -> web.StreamResponse:
        content = held.files.get(path)
        if content is None:
            return _refused(404, "EntryNotFound", f"{path} does not exist")
        headers = {"X-Repo-Commit": held.commit}
        if len(content) < held.lfs_from:
            return await self.hub.send(request, ServedFile(content, f'"{_git_id(content)}"', headers=headers))
        sha256 = hashlib.sha256(content).hexdigest()
        self.storage.add(f"/cdn/{sha256}", content)
        headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
        return web.Response(status=302, headers={**headers, "Location": f"{self.storage.url}/cdn/{sha256}"})


def _refused(status: int, code: str, message: str) -> web.Response:
    return web.Response(status=status, headers={"X-Error-Code": code, "X-Error-Message": message})


def _entry(path: str, content: bytes, held: HubRepo) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "oid": _git_id(content), "size": len(content), "path": path}
    if len(content) >= held.lfs_from:
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 135}
    return entry


def _git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@asynccontextmanager
async def hugging_face_server() -> AsyncIterator[HuggingFaceServer]:
    async with hub_server() as hub, hub_server() as storage:
        server = HuggingFaceServer(hub, storage)
        hub.before = server.answer
        yield server
