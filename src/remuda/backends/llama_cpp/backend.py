"""The llama.cpp backend's calls: each translates, asks the engine, translates back."""

import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager

import grpc

from remuda.backends.calls import Backend, Context
from remuda.backends.llama_cpp import engine, replies
from remuda.backends.llama_cpp.connection import EngineGone
from remuda.backends.llama_cpp.engine import Engine, LoadFailed
from remuda.backends.llama_cpp.generation import BadRequest, plan_generation
from remuda.backends.llama_cpp.load_options import plan_load
from remuda.backends.refusal import Refused
from remuda.core.entropy import Entropy
from remuda.rpc import backend_pb2 as pb

log = logging.getLogger(__name__)


class LlamaCppBackend(Backend):
    """Holds at most one model; loading another one takes its place."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._engine: Engine | None = None
        self._options = pb.ModelOptions()
        self._loading = False

    async def LoadModel(self, request: pb.ModelOptions, context: Context) -> pb.Result:
        if self._engine is not None and not self._engine.ended and request == self._options:
            return pb.Result(success=True, message="already loaded")
        self._loading = True
        try:
            plan = plan_load(request)
            await self._unload()
            self._engine = await engine.load(plan, self._entropy)
        except (LoadFailed, ValueError) as error:
            log.warning("load_failed model=%r reason=%r", request.Model, str(error))
            return pb.Result(success=False, message=str(error))
        finally:
            self._loading = False
        self._options = request
        log.info("model_loaded path=%r slots=%d ignored=%r", plan.path, plan.parallel, plan.ignored)
        return pb.Result(success=True, message="loaded")

    async def Free(self, request: pb.HealthMessage, context: Context) -> pb.Result:
        await self._unload()
        return pb.Result(success=True)

    async def close(self) -> None:
        await self._unload()

    async def PredictStream(
        self, request: pb.PredictOptions, context: Context
    ) -> AsyncGenerator[pb.Reply, None]:
        async for reply in self._generate(request):
            yield reply

    async def Predict(self, request: pb.PredictOptions, context: Context) -> pb.Reply:
        # As a stream, too: only between two tokens can the engine be told that nobody waits any more.
        async with aclosing(self._generate(request)) as stream:
            return replies.whole([reply async for reply in stream])

    async def _generate(self, request: pb.PredictOptions) -> AsyncGenerator[pb.Reply, None]:
        with self._asked() as loaded:
            generation = plan_generation(request, loaded.context_size)
            reply_of = replies.chat_reply if generation.chat else replies.completion_reply
            async with (
                loaded.slot(),
                aclosing(loaded.connection.stream(generation.path, generation.body)) as batches,
            ):
                async for events in batches:
                    if reply := reply_of(events):
                        yield reply

    @contextmanager
    def _asked(self) -> Generator[Engine, None, None]:
        """The engine, for one call; what goes wrong with either has a status afterwards."""
        if self._engine is None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "model not loaded")
        if self._engine.ended:
            message = f"model not loaded: its engine was ended by {self._engine.ended}"
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, message)
        try:
            yield self._engine
        except BadRequest as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        except EngineGone as error:
            raise Refused(grpc.StatusCode.UNAVAILABLE, str(error)) from error
        except TimeoutError as error:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the engine does not answer") from error

    async def _unload(self) -> None:
        if self._engine is not None:
            loaded, self._engine = self._engine, None
            await loaded.stop()
            log.info("model_freed path=%r", loaded.plan.path)
