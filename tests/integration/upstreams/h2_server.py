"""A gRPC server on another implementation of HTTP/2, which checks all that it is told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset, WindowUpdated
from h2.settings import SettingCodes, Settings

_CHUNK = 1 << 16


class EchoServer:
    """Answers each request with its own body, in pieces of `piece_bytes`. It widens its windows by no more
    than it has read, and `settings` are what it introduces itself with."""

    def __init__(self, piece_bytes: int, settings: dict[SettingCodes, int]) -> None:
        self.piece_bytes = piece_bytes
        self.settings = settings
        self.resets = 0
        self.connections = 0

    async def handle(self, stream: SocketStream) -> None:
        self.connections += 1
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        connection.local_settings = Settings(client=False, initial_values=self.settings)
        connection.max_inbound_frame_size = connection.local_settings.max_frame_size
        connection.initiate_connection()
        bodies: dict[int, bytearray] = {}
        async with stream:
            await stream.send(connection.data_to_send())
            async for data in stream:
                for event in connection.receive_data(data):
                    self._take(connection, bodies, event)
                self._echo(connection, bodies)
                if unsent := connection.data_to_send():
                    await stream.send(unsent)

    def _take(self, connection: H2Connection, bodies: dict[int, bytearray], event: Event) -> None:
        match event:
            case RequestReceived(stream_id=int(stream_id)):
                connection.send_headers(stream_id, [(":status", "200"), ("content-type", "application/grpc")])
            case DataReceived(stream_id=int(stream_id), data=bytes(data), flow_controlled_length=int(size)):
                bodies.setdefault(-stream_id, bytearray()).extend(data)
                connection.acknowledge_received_data(size, stream_id)
            case StreamEnded(stream_id=int(stream_id)):
                bodies[stream_id] = bodies.pop(-stream_id)  # Not before it is whole.
            case StreamReset(stream_id=int(stream_id)):
                self.resets += 1
                bodies.pop(stream_id, None)
            case WindowUpdated():
                pass

    def _echo(self, connection: H2Connection, bodies: dict[int, bytearray]) -> None:
        for stream_id, body in [(stream_id, body) for stream_id, body in bodies.items() if stream_id > 0]:
            while body:
                room = min(
                    connection.local_flow_control_window(stream_id), connection.max_outbound_frame_size
                )
                size = min(room, self.piece_bytes, len(body))
                if not size:
                    break
                connection.send_data(stream_id, bytes(body[:size]))
                del body[:size]
            if not body:
                connection.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)
                del bodies[stream_id]


@asynccontextmanager
async def echo_server(
    piece_bytes: int = _CHUNK, settings: dict[SettingCodes, int] | None = None
) -> AsyncIterator[tuple[str, EchoServer]]:
    """The address of a server, and the server."""
    server = EchoServer(piece_bytes, settings or {})
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, server.handle)
        yield f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}", server
        group.cancel_scope.cancel()
