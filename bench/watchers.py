"""Readers of the stream of operations, cheap enough that many of them do not become what is measured."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import httpx

Json = dict[str, Any]


@dataclass(slots=True)
class Watcher:
    """One reader, and the picture it has made itself of one operation."""

    url: httpx.URL
    changes: int = 0
    ticks: int = 0
    received_bytes: int = 0
    place: int = 0  # The last change seen.
    picture: dict[str, Json] = field(default_factory=dict)  # Steps by node.
    done_at: dict[str, float] = field(default_factory=dict)  # By node, on the monotonic clock.
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self) -> None:
        rest = b""
        async for part in self._body():
            self.received_bytes += len(part)
            *events, rest = (rest + part).split(b"\n\n")
            for event in events:
                self._take(event)

    def _take(self, event: bytes) -> None:
        if event.startswith(b"event: progress"):  # By far the most; only counted.
            self.ticks += 1
            return
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if not line.startswith(b":"))
        self.place = int(fields.get(b"id", self.place))
        match fields.get(b"event"):
            case b"ready":
                self.ready.set()
            case b"op":
                self.changes += 1
                self._see(_read(fields[b"data"]))

    def _see(self, op: Json) -> None:
        now = time.monotonic()
        steps = {step["node_id"]: step for step in op["steps"]}
        self.picture = steps if op["whole"] else {**self.picture, **steps}
        for node, step in steps.items():
            if step["state"] == "succeeded":
                self.done_at.setdefault(node, now)
        if op.get("finished_at"):
            self.finished.set()

    async def _body(self) -> AsyncIterator[bytes]:
        """What the server sends, without the frames of its chunks."""
        reader, writer = await asyncio.open_connection(self.url.host, self.url.port, limit=1 << 20)
        writer.write(f"GET /api/ops/events HTTP/1.1\r\nHost: {self.url.netloc.decode()}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode())
        while size := int(await reader.readline(), 16):
            yield (await reader.readexactly(size + 2))[:-2]


@lru_cache(maxsize=64)
def _read(data: bytes) -> Json:
    """All readers are told the same, so that it is read once."""
    read: Json = json.loads(data)
    return read
