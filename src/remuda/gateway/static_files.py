"""The files of the web console: its page, for every address of one of its views, and what that page loads."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from remuda.gateway.middleware import OF_CONSOLE

VIEWS: Final = frozenset(
    {"fleet", "nodes", "operations", "backends", "models", "playground", "keys", "settings", "sign-in"}
)
"""First parts of the addresses of views. Some are paths of the API as well: a browser that goes there to show
a page asks for HTML, and nothing else does."""
INDEX: Final = "index.html"
_ASSETS: Final = "assets/"
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_SECURE: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".txt": "text/plain",
}
_CODINGS: Final = {"br": ".br", "gzip": ".gz"}  # The best first.


@dataclass(frozen=True, slots=True)
class StaticFile:
    media_type: str
    etag: str
    bodies: Mapping[str, bytes]  # By content coding; "" is the file itself.


class StaticFiles:
    """Those below a folder, read once: they are part of this program."""

    def __init__(self, folder: Path) -> None:
        self._files = _read(folder)

    def named(self, path: str) -> StaticFile | None:
        return self._files.get(path)

    def answer(self, path: str, headers: Headers) -> Response | None:
        """None where there is no such file."""
        file = self._files.get(path)
        if file is None:
            return None
        cached = "public, max-age=31536000, immutable" if path.startswith(_ASSETS) else "no-cache"
        sent = {**_SECURE, "Cache-Control": cached, "ETag": file.etag, "Vary": "Accept-Encoding, Accept"}
        if headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=sent)
        coding = _coding(headers.get("accept-encoding", ""), file)
        if coding:
            sent["Content-Encoding"] = coding
        return Response(file.bodies[coding], media_type=file.media_type, headers=sent)

    def page(self, headers: Headers) -> Response:
        """The console's own page, which shows whatever view its address names."""
        shown = self.answer(INDEX, headers)
        assert shown is not None, "it is part of every build"
        return shown


class ConsolePage:
    """The console's own page, whatever is asked for."""

    def __init__(self, files: StaticFiles) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[OF_CONSOLE] = True
        await self._files.page(Headers(scope=scope))(scope, receive, send)


class ConsolePages:
    """Stands before everything: addresses of views are paths of the API, too."""

    def __init__(self, app: ASGIApp, page: ASGIApp) -> None:
        self._app = app
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            first = scope["path"].split("/", 2)[1] if scope["path"].startswith("/") else ""
            if first in VIEWS and shows_page(Headers(scope=scope)):
                await self._page(scope, receive, send)
                return
        await self._app(scope, receive, send)


def shows_page(headers: Headers) -> bool:
    """Whether a browser asks, for a page that it is to show."""
    return "text/html" in headers.get("accept", "")


def is_view(request: Request) -> bool:
    """Whether an address that no route has may be one of the console's: not those of APIs."""
    of_api = request.scope["path"].startswith(("/api/", "/v1/", "/ws/"))
    return request.method in ("GET", "HEAD") and not of_api and shows_page(request.headers)


def _coding(accepted: str, file: StaticFile) -> str:
    words = {word.strip() for word in accepted.split(",") if not word.replace(" ", "").endswith(";q=0")}
    offered = {word.partition(";")[0].strip() for word in words}
    return next((coding for coding in _CODINGS if coding in offered and coding in file.bodies), "")


def _read(folder: Path) -> dict[str, StaticFile]:
    files: dict[str, StaticFile] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix not in _TYPES:
            continue
        body = path.read_bytes()
        packed = {
            coding: other.read_bytes()
            for coding, suffix in _CODINGS.items()
            if (other := path.with_name(path.name + suffix)).is_file()
        }
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        name = path.relative_to(folder).as_posix()
        files[name] = StaticFile(_TYPES[path.suffix], etag, {"": body, **packed})
    return files
