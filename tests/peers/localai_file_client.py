"""A client of a worker's file server, written from section 7 of LocalAI's wire contract.

It knows nothing of ours. Blocks: call it in a thread. Keys go into the URL unescaped, as LocalAI's frontend
sends them; what HTTP does not allow in a request line is escaped.
"""

import hashlib
import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

_HTTP_S = 30.0
_UNESCAPED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '?#"')
_never = threading.Event()
_BROKEN = (ConnectionError, TimeoutError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        document = json.loads(self.body)
        assert isinstance(document, dict)
        return document


class TransferFailed(Exception):
    """409, or another answer that is not tried again."""


@dataclass(slots=True)
class LocalAiFileClient:
    """`address` is HOST:PORT."""

    address: str
    token: str = ""
    backoff_s: tuple[float, ...] = (1, 2, 4, 8, 16, 30)
    log: list[tuple[str, int]] = field(default_factory=list)  # Methods and statuses.

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection(self.address, timeout=_HTTP_S)
        try:
            given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            connection.request(method, quote(path, safe=_UNESCAPED), body, {**given, **(headers or {})})
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            reply = Reply(answer.status, names, answer.read())
        finally:
            connection.close()
        self.log.append((method, reply.status))
        return reply

    def head(self, key: str) -> Reply:
        return self.ask("HEAD", f"/v1/files/{key}")

    def put(self, key: str, body: bytes, sha256: str = "") -> Reply:
        """A whole upload."""
        return self.ask("PUT", f"/v1/files/{key}", body, _upload_headers(sha256))

    def put_range(self, key: str, body: bytes, start: int, total: int, sha256: str = "") -> Reply:
        content_range = f"bytes {start}-{start + len(body) - 1}/{total}"
        headers = {**_upload_headers(sha256), "Content-Range": content_range}
        return self.ask("PUT", f"/v1/files/{key}", body, headers)

    def get(self, key: str) -> Reply:
        return self.ask("GET", f"/v1/files/{key}")

    def temp(self) -> str:
        """The path of an empty output file."""
        return str(_ok(self.ask("POST", "/v1/files/temp")).json["local_path"])

    def list(self, key: str) -> list[str] | None:
        files = _ok(self.ask("GET", f"/v1/files-list/{key}")).json["files"]
        assert files is None or isinstance(files, list)
        return files

    def stage(
        self,
        file: Path,
        key: str,
        *,
        deadline_s: float = 60.0,
        wait: Callable[[float], object] = _never.wait,
    ) -> str:
        """Have the file on the worker; returns its path there."""
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        before = self.head(key)
        if before.headers.get("x-content-sha256") == digest:
            return before.headers["x-local-path"]
        give_up, attempt = time.monotonic() + deadline_s, 0
        while True:
            try:
                return self._attempt(key, content, digest)
            except _BROKEN:
                if time.monotonic() > give_up:
                    raise
            wait(self.backoff_s[min(attempt, len(self.backoff_s) - 1)])
            attempt += 1

    def _attempt(self, key: str, content: bytes, digest: str) -> str:
        """Raises ConnectionError where the contract says to try again."""
        if not content:
            return str(_ok(self.put(key, b"", digest)).json["local_path"])
        start = 0
        there = self.head(key)
        if there.headers.get("x-target-sha256") == digest:
            size = int(there.headers["x-file-size"])
            start = size if size < len(content) else 0
        reply = self.put_range(key, content[start:], start, len(content), digest)
        if reply.status in (308, 416):
            raise ConnectionError(f"status {reply.status}")
        return str(_ok(reply).json["local_path"])


def _upload_headers(sha256: str) -> dict[str, str]:
    given = {"X-Content-SHA256": sha256} if sha256 else {}
    return {"Content-Type": "application/octet-stream", **given}


def _ok(reply: Reply) -> Reply:
    if reply.status != http.client.OK:
        raise TransferFailed(f"{reply.status} {reply.body.decode(errors='replace').strip()}")
    return reply
