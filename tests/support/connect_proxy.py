"""An HTTP proxy as companies have them: it takes CONNECT, and passes on what it cannot read."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteStream, SocketAttribute


@dataclass
class ConnectProxy:
    """`leads_to`: where names lead that only it knows. `refuses`: with this status line, instead."""

    leads_to: dict[str, int] = field(default_factory=dict)
    refuses: str = ""
    user: str = ""
    asked: list[str] = field(default_factory=list)
    passed: bytes = b""  # From clients.
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.user}@127.0.0.1:{self.port}" if self.user else f"http://127.0.0.1:{self.port}"

    async def serve(self, client: ByteStream) -> None:
        async with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await client.receive()
            place = head.split()[1].decode()
            self.asked.append(place)
            wanted = base64.b64encode(self.user.encode())
            refusal = self.refuses
            if self.user and wanted not in head:
                refusal = "407 Proxy Authentication Required"
            elif place not in self.leads_to:  # Such as galleries, at which frontends look by themselves.
                refusal = "502 Bad Gateway"
            if refusal:
                await client.send(f"HTTP/1.1 {refusal}\r\n\r\n".encode())
                return
            async with await anyio.connect_tcp("127.0.0.1", self.leads_to[place]) as server:
                await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._pass, server, client, False)
                    await self._pass(client, server, True)
                    tasks.cancel_scope.cancel()

    async def _pass(self, source: ByteStream, target: ByteStream, from_client: bool) -> None:
        try:
            async for data in source:
                self.passed += data if from_client else b""
                await target.send(data)
            await target.send_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


@asynccontextmanager
async def connect_proxy(proxy: ConnectProxy) -> AsyncIterator[ConnectProxy]:
    """It listens on loopback while the block lasts."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    proxy.port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, proxy.serve)
        yield proxy
        tasks.cancel_scope.cancel()
