"""HTTP/1.1 by hand: for clients that do what no library lets them do."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

PATIENCE_S = 20.0
LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class RawReply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def post(path: str, body: object, *headers: str, length: int | None = None) -> bytes:
    """A request as bytes; `length` announces another length than the body's."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    announced = len(content) if length is None else length
    head = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {announced}", *headers)
    return "\r\n".join((*head, "", "")).encode() + content


class RawClient:
    """One connection."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._reader = BufferedByteReceiveStream(stream)

    async def send(self, data: bytes) -> None:
        await self.stream.send(data)

    async def ask(self, request: bytes) -> RawReply:
        await self.send(request)
        return await self.reply()

    async def reply(self) -> RawReply:
        """The next whole answer."""
        with anyio.fail_after(PATIENCE_S):
            status, headers = await self.head()
            if headers.get("transfer-encoding") == "chunked":
                return RawReply(status, headers, b"".join([part async for part in self.chunks()]))
            body = await self._reader.receive_exactly(int(headers["content-length"]))
            return RawReply(status, headers, body)

    async def head(self) -> tuple[int, dict[str, str]]:
        with anyio.fail_after(PATIENCE_S):
            lines = (await self._reader.receive_until(b"\r\n\r\n", LINE_BYTES_MAX)).decode("latin-1")
        first, *rest = lines.split("\r\n")
        fields = (line.partition(": ") for line in rest)
        return int(first.split()[1]), {name.lower(): value for name, _, value in fields}

    async def chunk(self) -> bytes:
        """The next chunk; empty: the last."""
        with anyio.fail_after(PATIENCE_S):
            size = int(await self._reader.receive_until(b"\r\n", LINE_BYTES_MAX), 16)
            data = await self._reader.receive_exactly(size + 2)
        return data[:-2]

    async def chunks(self) -> AsyncIterator[bytes]:
        while data := await self.chunk():
            yield data

    async def closed(self) -> bool:
        """The other side hung up: waits for it."""
        with anyio.fail_after(PATIENCE_S):
            try:
                return not await self.stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return True

    def reset(self) -> None:
        """Gone, as a process that was killed is."""
        self.stream.extra(SocketAttribute.raw_socket).setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER 0.


@asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[RawClient]:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield RawClient(stream)
