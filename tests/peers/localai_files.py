"""The file server of a worker, written from section 7 of LocalAI's wire contract. It knows nothing of ours.

Files are written in place, with the marks of section 7.3 beside them, as LocalAI's workers do. A test can
make it misbehave: break connections, take only a part, stall, or answer with a status of its own.
"""

import hashlib
import hmac
import json
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_READ_BYTES = 64 << 10
_LINGER_S = 0.5


@dataclass
class LocalAiFiles:
    """`root` gets the folders models, data and staging. Use `serving`."""

    root: Path
    token: str = ""
    address: str = ""
    requests: list[tuple[str, int]] = field(default_factory=list)  # Methods and statuses.
    received: int = 0  # Bytes of bodies.
    # What it does wrong, each used up by one upload.
    breaks_after: list[int] = field(default_factory=list)  # Bytes, then the connection is reset.
    redirects_to: str = ""  # All that is asked.
    forgets: bool = False  # What it took before a connection was reset.
    takes_only: list[int] = field(default_factory=list)  # Bytes, then 308.
    answers: list[int] = field(default_factory=list)  # Statuses, instead of all else.
    stalls_after: list[int] = field(default_factory=list)  # Bytes, then nothing until `resumed` is set.
    resumed: threading.Event = field(default_factory=threading.Event)

    def place(self, key: str) -> Path | None:
        """None: outside, or below a folder that is not there."""
        area, _, rest = key.partition("/")
        base, path = (
            (self.root / area, rest) if area in ("models", "data") and rest else (self.root / "staging", key)
        )
        if not base.is_dir():
            return None
        target = (base / path).resolve()
        return base / path if target.is_relative_to(base.resolve()) else None

    @contextmanager
    def serving(self, port: int = 0) -> Iterator["LocalAiFiles"]:
        for area in ("models", "staging"):
            (self.root / area).mkdir(parents=True, exist_ok=True)
        handler = type("Handler", (_Handler,), {"files": self})
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        self.address = f"127.0.0.1:{server.server_port}"
        thread.start()
        try:
            yield self
        finally:
            self.resumed.set()
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: LocalAiFiles

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        if (path := self._checked()) is None:
            return
        if path.is_dir():
            self._text(400, "is a directory")
        elif not path.is_file():
            self._text(404, "not found")
        else:
            headers = {
                "X-Local-Path": str(path),
                "X-File-Size": str(path.stat().st_size),
                "Accept-Ranges": "bytes",
            }
            target = _read(path, ".sha256.target")
            hashed = {"X-Target-SHA256": target} if target else {"X-Content-SHA256": _hash_of(path)}
            self._reply(200, b"", {**headers, **hashed})

    def do_GET(self) -> None:
        if self.path.startswith("/v1/files-list/"):
            self._list()
            return
        if (path := self._checked()) is None:
            return
        if path.is_file():
            self._reply(200, path.read_bytes(), {"Content-Type": "application/octet-stream"})
        else:
            self._text(404, "not found")

    def do_POST(self) -> None:
        if self.path != "/v1/files/temp":
            self._text(404, "not found")
        elif self._authorized():
            path = self.files.root / "staging" / f"localai-output-{secrets.randbelow(10**9)}.tmp"
            path.touch()
            self._json({"local_path": str(path)})

    def do_PUT(self) -> None:
        if (path := self._checked()) is None:
            return
        if self.files.answers:
            self._text(self.files.answers.pop(0), "as the test wants it")
            return
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        given = self.headers.get("Content-Range")
        if given is None:
            self._whole(path)
        elif (found := _RANGE.fullmatch(given)) is None:
            self._text(400, "invalid Content-Range")
        else:
            start, end, total = (int(number) for number in found.groups())
            self._range(path, start, end, total)

    def _whole(self, path: Path) -> None:
        sha256 = self.headers.get("X-Content-SHA256", "")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.files.received += len(body)
        path.write_bytes(body)
        if sha256 and _digest(path) != sha256:
            _remove(path)
            self._text(400, "hash mismatch")
        else:
            self._json({"local_path": str(path)})

    def _range(self, path: Path, start: int, end: int, total: int) -> None:
        sha256, size = self.headers.get("X-Content-SHA256", ""), path.stat().st_size if path.exists() else 0
        target = _read(path, ".sha256.target")
        if start == 0 and size and (target or _read(path, ".sha256")) != sha256:
            _remove(path)
            size = 0
        if start > 0 and target and target != sha256:
            _remove(path)
            self._text(409, "target hash differs")
            return
        if start != size:
            self._text(416, "wrong start", {"Content-Range": f"bytes */{total}", "X-File-Size": str(size)})
            return
        if sha256:
            path.with_name(f"{path.name}.sha256.target").write_text(sha256)
        complete = self._take(path, end - start + 1)
        if complete is None:
            return
        size = path.stat().st_size
        if not complete or size < total:
            self._reply(308, b"", {"Range": f"bytes=0-{size - 1}", "X-File-Size": str(size)})
        elif sha256 and _digest(path) != sha256:
            _remove(path)
            self._text(400, "hash mismatch")
        else:
            path.with_name(f"{path.name}.sha256.target").unlink(missing_ok=True)
            path.with_name(f"{path.name}.sha256").write_text(_digest(path))
            self._json({"local_path": str(path)})

    def _take(self, path: Path, length: int) -> bool | None:
        """Whether all of the body was taken; None: there is nobody to answer any more."""
        files = self.files
        breaks = files.breaks_after.pop(0) if files.breaks_after else None
        only = files.takes_only.pop(0) if files.takes_only else None
        stalls = files.stalls_after.pop(0) if files.stalls_after else None
        end = min(length if one is None else one for one in (breaks, only, stalls, length))
        taken = 0
        with path.open("ab") as file:
            while taken < end and (data := self.rfile.read1(min(_READ_BYTES, end - taken))):
                file.write(data)
                taken += len(data)
        files.received += taken
        if stalls is not None:
            files.resumed.wait()
        if breaks is not None and files.forgets:
            _remove(path)
        if breaks is not None or stalls is not None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            self.close_connection = True
            return None
        return taken == length

    def _list(self) -> None:
        if (path := self._checked("/v1/files-list/")) is None:
            return
        if not path.is_dir():
            self._text(404, "not a directory")
            return
        found = sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file())
        self._json({"files": found or None})

    def _checked(self, prefix: str = "/v1/files/") -> Path | None:
        """None: it was answered."""
        if not self._authorized():
            return None
        if self.files.redirects_to:
            self._text(307, "elsewhere", {"Location": self.files.redirects_to + self.path})
            return None
        path = self.files.place(unquote(urlsplit(self.path).path).removeprefix(prefix))
        if path is None:
            self._text(400, "invalid path")
        return path

    def _authorized(self) -> bool:
        given = self.headers.get("Authorization", "")
        if not self.files.token or hmac.compare_digest(given, f"Bearer {self.files.token}"):
            return True
        self._text(401, "unauthorized")
        return False

    def _json(self, document: object) -> None:
        self._reply(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _text(self, status: int, words: str, headers: dict[str, str] | None = None) -> None:
        self._reply(status, words.encode(), {"Content-Type": "text/plain", **(headers or {})})

    def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.files.requests.append((self.command, status))
        self.close_connection = True
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "Connection": "close"}.items():
            self.send_header(name, value.encode().decode("latin-1"))  # Go sends UTF-8 as it is.
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if self.command == "PUT":
            self._linger()

    def _linger(self) -> None:
        """As Go's server does: closed at once, with a part of the body unread, the answer could be lost to a
        client that still sends."""
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_S)
            while self.connection.recv(_READ_BYTES):
                pass


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _hash_of(path: Path) -> str:
    sidecar = path.with_name(f"{path.name}.sha256")
    if sidecar.exists() and sidecar.stat().st_mtime_ns >= path.stat().st_mtime_ns:
        return sidecar.read_text()
    return _digest(path)


def _read(path: Path, suffix: str) -> str:
    sidecar = path.with_name(f"{path.name}{suffix}")
    return sidecar.read_text() if sidecar.exists() else ""


def _remove(path: Path) -> None:
    for suffix in ("", ".sha256", ".sha256.target"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
