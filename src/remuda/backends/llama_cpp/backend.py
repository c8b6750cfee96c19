"""The llama.cpp backend's calls: each translates, asks the engine, translates back."""

import json
import logging
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from typing import TypeVar

import anyio
import anyio.lowlevel
import grpc
from anyio.abc import TaskStatus

from remuda.backends.calls import Backend, Context, Refused
from remuda.backends.llama_cpp import engine, replies
from remuda.backends.llama_cpp.connection import EngineGone
from remuda.backends.llama_cpp.engine import Engine, LoadFailed
from remuda.backends.llama_cpp.forced_calls import CallReading
from remuda.backends.llama_cpp.generation import BadRequest, plan_generation
from remuda.backends.llama_cpp.load_options import plan_load
from remuda.backends.llama_cpp.threads import usual_threads
from remuda.core.entropy import Entropy
from remuda.core.slices import Sliced
from remuda.core.tasks import TaskOwner
from remuda.rpc import backend_pb2 as pb
from remuda.rpc.metadata import ADD_SPECIAL_TOKENS, CACHED_TOKENS, STOP_SEQUENCE

T = TypeVar("T")
_CALL_ID_BYTES = 12
_PROBE = [{"role": "user", "content": "Hello"}]

log = logging.getLogger(__name__)


class LlamaCppBackend(Backend):
    """Holds at most one model; loading another one takes its place."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._engine: Engine | None = None
        self._options = pb.ModelOptions()
        self._loading = False
        self._watches = TaskOwner()
        self._failure = ""
        self._failed = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self._watches.run(task_status=task_status)

    async def failed(self) -> str:
        """Why this process has to exit: with its engine gone, the model is no longer loaded."""
        await self._failed.wait()
        return self._failure

    async def LoadModel(self, request: pb.ModelOptions, context: Context) -> pb.Result:
        if self._engine is not None and not self._engine.ended and request == self._options:
            return pb.Result(success=True, message="already loaded")
        self._loading = True
        try:
            plan = plan_load(request, threads=usual_threads())
            if plan.ignored:
                log.warning("options_ignored names=%s", ",".join(plan.ignored))
            await self._unload()
            self._engine = await engine.load(plan, self._entropy)
        except (LoadFailed, ValueError) as error:
            log.warning("load_failed model=%r reason=%r", request.Model, str(error))
            return pb.Result(success=False, message=str(error))
        finally:
            self._loading = False
        if self._watches.is_open:
            self._watches.start(self._watch, self._engine)
        self._options = request
        log.info(
            "model_loaded path=%r slots=%d context=%d", plan.path, plan.parallel, self._engine.context_size
        )
        return pb.Result(success=True, message="loaded")

    async def Free(self, request: pb.HealthMessage, context: Context) -> pb.Result:
        await self._unload()
        return pb.Result(success=True)

    async def close(self) -> None:
        await self._unload()

    async def PredictStream(
        self, request: pb.PredictOptions, context: Context
    ) -> AsyncGenerator[pb.Reply, None]:
        with self._running_engine() as loaded:
            plan = plan_generation(request, loaded.context_size, template_has_tools=loaded.template_has_tools)
            generation = await _in_turns(plan)
            stops, stopped_at, cached = bool(request.StopPrompts), "", None
            reply_of = replies.chat_reply if generation.chat else replies.completion_reply
            call = CallReading(self._entropy.token(_CALL_ID_BYTES)) if generation.forced_call else None
            async with (
                loaded.slot(),
                aclosing(loaded.connection.stream(generation.path, generation.body)) as batches,
            ):
                with loaded.working(bound=generation.bound) as work:
                    async for events in batches:
                        if stops:
                            stopped_at = stopped_at or replies.stopping_word(events)
                        if cached is None:
                            cached = replies.cached_tokens(events)
                        if reply := reply_of(events):
                            work.generating = True
                            yield call.hear(reply) if call else reply
                if call:
                    yield call.end()
            told = ((STOP_SEQUENCE, json.dumps(stopped_at)),) if stopped_at else ()
            context.set_trailing_metadata(told if cached is None else (*told, (CACHED_TOKENS, str(cached))))

    async def Predict(self, request: pb.PredictOptions, context: Context) -> pb.Reply:
        # As a stream, too: only between two tokens can the engine learn that the client has left.
        async with aclosing(self.PredictStream(request, context)) as stream:
            return replies.whole([reply async for reply in stream])

    async def Embedding(self, request: pb.PredictOptions, context: Context) -> pb.EmbeddingResult:
        content = list(request.EmbeddingTokens) or request.Embeddings
        if not content:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "Embeddings and EmbeddingTokens are both empty")
        with self._running_engine() as loaded:
            if not loaded.plan.embeds:
                message = (
                    "it was not loaded for them: set `embeddings: true` in its YAML "
                    "(a model added from a GGUF file has none: write one, then remuda models add FILE.yaml)"
                )
                raise Refused(grpc.StatusCode.UNIMPLEMENTED, message)
            async with loaded.slot():
                if loaded.pools:
                    body = {"input": content, "encoding_format": "base64"}
                    return replies.pooled_embedding(await loaded.connection.post("/v1/embeddings", body))
                answer = await loaded.connection.post("/embedding", {"content": content})
                return replies.token_embeddings(answer)

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResult:
        documents = list(request.documents)
        wanted = request.top_n if request.top_n > 0 else len(documents)
        with self._running_engine() as loaded:
            if not loaded.plan.reranks:
                message = "it was not loaded for it: set `reranking: true` in its YAML"
                raise Refused(grpc.StatusCode.UNIMPLEMENTED, message)
            async with loaded.slot():
                body = {"query": request.query, "documents": documents, "top_n": wanted}
                return replies.rerank_result(await loaded.connection.post("/v1/rerank", body), documents)

    async def TokenizeString(self, request: pb.PredictOptions, context: Context) -> pb.TokenizationResponse:
        with self._running_engine() as loaded:
            text = request.Prompt
            if templated := request.UseTokenizerTemplate and bool(request.Messages):
                plan = plan_generation(
                    request, loaded.context_size, template_has_tools=loaded.template_has_tools
                )
                chat = await _in_turns(plan)
                text = (await loaded.connection.post("/apply-template", chat.body))["prompt"]
            special = templated or request.Metadata.get(ADD_SPECIAL_TOKENS) == "true"
            content = {"content": text, "add_special": special}
            answer = await loaded.connection.post("/tokenize", content)
            return pb.TokenizationResponse(length=len(answer["tokens"]), tokens=answer["tokens"])

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        with self._running_engine() as loaded:
            answer = await loaded.connection.post("/detokenize", {"tokens": list(request.tokens)})
            return pb.DetokenizeResponse(content=answer["content"])

    async def Status(self, request: pb.HealthMessage, context: Context) -> pb.StatusResponse:
        resident = {"server": _resident_bytes(os.getpid())}
        if self._engine is not None and not self._engine.ended:
            resident["engine"] = _resident_bytes(self._engine.pid)
        memory = pb.MemoryUsageData(total=sum(resident.values()), breakdown=resident)
        return pb.StatusResponse(state=self._state(), memory=memory)

    async def GetMetrics(self, request: pb.MetricsRequest, context: Context) -> pb.MetricsResponse:
        with self._running_engine() as loaded:
            return await loaded.metrics()

    async def ModelMetadata(self, request: pb.ModelOptions, context: Context) -> pb.ModelMetadataResponse:
        with self._running_engine() as loaded:
            thinking, silent = [
                (
                    await loaded.connection.post(
                        "/apply-template",
                        {"messages": _PROBE, "chat_template_kwargs": {"enable_thinking": enabled}},
                    )
                )["prompt"]
                for enabled in (True, False)
            ]
            return pb.ModelMetadataResponse(
                supports_thinking=thinking != silent,
                rendered_template=thinking,
                media_marker=loaded.properties["media_marker"],
            )

    def _state(self) -> pb.StatusResponse.State:
        if self._loading:
            return pb.StatusResponse.BUSY
        if self._engine is None:
            return pb.StatusResponse.UNINITIALIZED
        if self._engine.ended:
            return pb.StatusResponse.ERROR
        return pb.StatusResponse.BUSY if self._engine.busy else pb.StatusResponse.READY

    @contextmanager
    def _running_engine(self) -> Generator[Engine, None, None]:
        """The engine, for one call; what goes wrong between the two becomes the call's status."""
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

    async def _watch(self, loaded: Engine) -> None:
        await loaded.watch()
        if loaded is self._engine:  # Else it was unloaded.
            self._failure = f"the engine was ended by {loaded.ended}"
            self._failed.set()

    async def _unload(self) -> None:
        if self._engine is not None:
            loaded, self._engine = self._engine, None
            await loaded.stop()
            log.info("model_freed path=%r", loaded.plan.path)


async def _in_turns(work: Sliced[T]) -> T:
    """The result, with other calls answered between its slices."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await anyio.lowlevel.checkpoint()


def _resident_bytes(pid: int) -> int:
    import psutil  # Here, for it would take as long to import as half of all the rest.

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
