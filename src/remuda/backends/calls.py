"""From backend.proto to the methods of one backend: which calls it takes, what surrounds each of them, how
one is refused, and the free `key:value` texts of ModelOptions.Options, read as LocalAI's backends read
them. A backend is a plain class with methods named like the calls; what it does not define is
UNIMPLEMENTED.

A call meant for another model is refused: a worker may give the port of a stopped process to the next one
while a frontend still knows the old owner.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

import anyio
import grpc
from anyio.abc import TaskStatus
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from remuda.rpc import backend_pb2 as pb


class Refused(Exception):
    """The call ends with this status; `message` is for the caller, and `metadata` for its program."""

    def __init__(
        self, code: grpc.StatusCode, message: str, metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.metadata = metadata


class ModelNotLoaded(Refused):
    """Frontends know these words, and load the model before they ask again."""

    def __init__(self, why: str = "") -> None:
        message = f"model not loaded: {why}" if why else "model not loaded"
        super().__init__(grpc.StatusCode.FAILED_PRECONDITION, message)


OptionValue = bool | int | float | str


def parse_options(texts: Iterable[str]) -> Mapping[str, OptionValue]:
    """The options by key, their values as `option_value` understands them."""
    return {key: option_value(text) for key, text in split_options(texts).items()}


def split_options(texts: Iterable[str]) -> Mapping[str, str]:
    """Each text split at its first colon; those without are left out, of equal keys the last counts."""
    pairs = (text.partition(":") for text in texts)
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def option_value(text: str) -> OptionValue:
    """A truth value, else a whole number, else a number, else the text as it is."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


class LoadedModel:
    """What the last successful LoadModel brought, until Free."""

    def __init__(self) -> None:
        self._name: str | None = None

    def remember(self, options: pb.ModelOptions) -> None:
        self._name = options.Model

    def forget(self, _request: pb.HealthMessage) -> None:
        self._name = None

    def refusal(self, request: Message) -> Refused | None:
        """Why `request` may not be answered now; None when it may.

        Only `ModelIdentity` is compared: other fields that name a model are rewritten on their way.
        """
        if "ModelIdentity" not in request.DESCRIPTOR.fields_by_name:
            return None
        if self._name is None:
            return ModelNotLoaded()
        wanted: str = getattr(request, "ModelIdentity")  # noqa: B009 - messages in general have no such field.
        if not wanted or not self._name or wanted == self._name:
            return None
        return Refused(
            grpc.StatusCode.NOT_FOUND,
            f"model identity mismatch: this backend holds {self._name!r}, the call is for {wanted!r}",
        )


Context: TypeAlias = grpc.aio.ServicerContext
UnaryCall = Callable[[Any, Context], Awaitable[Message]]
ResultCall = Callable[[Any, Context], Awaitable[pb.Result]]
StreamingCall = Callable[[Any, Context], AsyncGenerator[Message, None]]

log = logging.getLogger(__name__)


class Backend:
    """What built-in backends have in common; each adds `async def LoadModel(request, context)` and so on.

    Streams are async generators, closed as soon as their caller leaves. Nothing may block the event loop:
    engines work in threads, so that Health is answered meanwhile. To refuse a call, raise Refused.
    """

    async def Health(self, request: pb.HealthMessage, context: Context) -> pb.Reply:
        return pb.Reply(message=b"OK")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """What goes on beside the calls; cancelled when the process is about to end."""
        task_status.started()

    async def failed(self) -> str:
        """Returns once the backend cannot go on, with the reason. Its process ends then."""
        await anyio.sleep_forever()
        return ""

    async def close(self) -> None:
        """Called once, when the last call has ended and the process is about to."""


class Calls:
    """The gRPC handlers of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._model = LoadedModel()
        self._changing_model = anyio.Lock()

    def handlers(self) -> grpc.GenericRpcHandler:
        service = pb.DESCRIPTOR.services_by_name["Backend"]
        taken = {
            method.name: self._handler(method, getattr(self._backend, method.name))
            for method in service.methods
            if hasattr(self._backend, method.name)
        }
        return grpc.method_handlers_generic_handler(service.full_name, taken)

    def _handler(self, method: MethodDescriptor, behaviour: Any) -> grpc.RpcMethodHandler:
        assert not method.client_streaming, f"{method.name} reads a stream, which no backend here does yet"
        coding = {
            "request_deserializer": GetMessageClass(method.input_type).FromString,
            "response_serializer": GetMessageClass(method.output_type).SerializeToString,
        }
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(behaviour), **coding)
        match method.name:
            case "LoadModel":
                behaviour = self._changing(behaviour, self._model.remember)
            case "Free":
                behaviour = self._changing(behaviour, self._model.forget)
        return grpc.unary_unary_rpc_method_handler(self._unary(behaviour), **coding)

    def _unary(self, behaviour: UnaryCall) -> UnaryCall:
        async def call(request: Message, context: Context) -> Message:
            async with _status_of_errors(context):
                self._check(request)
                return await behaviour(request, context)

        return call

    def _stream(self, behaviour: StreamingCall) -> Callable[[Message, Context], Awaitable[None]]:
        # A coroutine that writes, not a generator: gRPC would leave that one unclosed when the caller leaves.
        async def call(request: Message, context: Context) -> None:
            async with _status_of_errors(context):
                self._check(request)
                async with aclosing(behaviour(request, context)) as replies:
                    async for reply in replies:
                        await context.write(reply)

        return call

    def _check(self, request: Message) -> None:
        if refusal := self._model.refusal(request):
            raise refusal

    def _changing(self, behaviour: ResultCall, done: Callable[[Any], None]) -> ResultCall:
        """LoadModel and Free, one at a time: two frontends may load at once."""

        async def change(request: Message, context: Context) -> pb.Result:
            async with self._changing_model:
                result = await behaviour(request, context)
                if result.success:
                    done(request)
                return result

        return change


@asynccontextmanager
async def _status_of_errors(context: Context) -> AsyncGenerator[None, None]:
    try:
        yield
    except grpc.aio.AbortError:
        raise  # It has its status already.
    except Refused as refused:
        await context.abort(refused.code, refused.message, refused.metadata)
    except Exception as error:
        log.exception("call_failed")
        await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
