"""Backends that do exactly what a test says, in its own process."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio

from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import channels

Behaviour = Callable[[Any, Any], Awaitable[Any]]
_STREAMS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["Backend"].methods}
_BIG = [("grpc.max_send_message_length", 200 << 20), ("grpc.max_receive_message_length", 200 << 20)]


class Open:
    """How many calls are under way, and how many there were."""

    def __init__(self) -> None:
        self.now = 0
        self.ever = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.now += 1
        self.ever += 1
        try:
            yield
        finally:
            self.now -= 1


@asynccontextmanager
async def scripted(**behaviours: Behaviour) -> AsyncIterator[str]:
    """The address of a backend that answers these methods. A stream's behaviour writes to its context;
    both kinds may hand over bytes instead of messages."""
    server = grpc.aio.server(options=_BIG)
    handlers = {name: _handler(name, behaviour) for name, behaviour in behaviours.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(channels.SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def says(*replies: pb.Reply | bytes) -> Behaviour:
    """A stream of these."""

    async def behaviour(request: pb.PredictOptions, context: Any) -> None:
        for reply in replies:
            await context.write(reply)

    return behaviour


def says_then_fails(
    code: grpc.StatusCode, details: str, *replies: pb.Reply, metadata: tuple[tuple[str, str], ...] = ()
) -> Behaviour:
    async def behaviour(request: pb.PredictOptions, context: Any) -> None:
        for reply in replies:
            await context.write(reply)
        await context.abort(code, details, metadata)

    return behaviour


def text(content: str, **more: Any) -> pb.Reply:
    """As backends of today send it: as text, and as a delta."""
    return pb.Reply(message=content.encode(), chat_deltas=[pb.ChatDelta(content=content)], **more)


def _handler(name: str, behaviour: Behaviour) -> Any:
    request_class = getattr(pb, _STREAMS[name].input_type.name)
    kind = (
        grpc.unary_stream_rpc_method_handler
        if _STREAMS[name].server_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    return kind(behaviour, request_deserializer=request_class.FromString, response_serializer=_serialized)


def _serialized(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
