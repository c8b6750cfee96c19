"""The calls that echo answers, and what it has done so far, for GetMetrics: tests see there that a cancelled
stream really ended."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass

import anyio
import grpc

from remuda.backends.calls import Backend, Context, ModelNotLoaded, Refused, split_options
from remuda.backends.echo import words
from remuda.backends.echo.script import Script, is_failure, read_script
from remuda.backends.echo.speech import die_by, pause, speak
from remuda.backends.echo.words import EchoAnswer
from remuda.rpc import backend_pb2 as pb
from remuda.rpc.metadata import STOP_SEQUENCE


@dataclass(slots=True)
class CallCounts:
    """Calls that generate, by how they ended; tokens of all of them."""

    active: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    tokens: int = 0
    prompt_tokens: int = 0

    @contextmanager
    def counted(self, prompt_tokens: int) -> Iterator[None]:
        self.active += 1
        self.prompt_tokens += prompt_tokens
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):  # The latter: it left while a token was on its way.
            self.cancelled += 1
            raise
        except BaseException:
            self.failed += 1
            raise
        else:
            self.finished += 1
        finally:
            self.active -= 1


_WORDS_REMEMBERED_MAX = 1 << 16
_WORD_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class EchoBackend(Backend):
    """`ready`: whether Health ever says so."""

    def __init__(self, *, ready: bool = True) -> None:
        self._ready = ready
        self._options: Mapping[str, str] | None = None  # None: no model is loaded.
        self._tally = CallCounts()
        self._vocabulary: OrderedDict[int, str] = OrderedDict()

    async def Health(self, request: pb.HealthMessage, context: Context) -> pb.Reply:
        return await super().Health(request, context) if self._ready else pb.Reply(message=b"NOT READY")

    async def LoadModel(self, request: pb.ModelOptions, context: Context) -> pb.Result:
        options = split_options(request.Options)
        try:
            script = read_script(options)
        except ValueError as error:
            return pb.Result(success=False, message=str(error))
        await anyio.sleep(script.load_delay_s)
        if script.load_crash:
            die_by(script.load_crash)
        if is_failure(script.load_fail):
            raise Refused(grpc.StatusCode[script.load_fail], "failed to load, as told")
        if script.load_fail:
            return pb.Result(success=False, message=script.load_fail)
        self._options = options
        return pb.Result(success=True, message="loaded")

    async def Free(self, request: pb.HealthMessage, context: Context) -> pb.Result:
        self._options = None
        return pb.Result(success=True, message="freed")

    async def Predict(self, request: pb.PredictOptions, context: Context) -> pb.Reply:
        async with aclosing(self.PredictStream(request, context)) as stream:
            replies = [reply async for reply in stream]
        whole = replies[-1]  # It has the account.
        whole.message = b"".join(reply.message for reply in replies)
        content = "".join(delta.content for reply in replies for delta in reply.chat_deltas)
        whole.chat_deltas.extend([pb.ChatDelta(content=content)] if content else [])
        return whole

    async def PredictStream(
        self, request: pb.PredictOptions, context: Context
    ) -> AsyncGenerator[pb.Reply, None]:
        script, answer = self._script(request.Metadata), words.answer_to(request)
        began, sent = anyio.current_time(), 0
        with self._tally.counted(answer.prompt_tokens):
            async with aclosing(speak(script, answer.tokens)) as messages:
                async for message in messages:
                    # None with garbage: a frontend would believe them, and never face it.
                    deltas = [] if script.garbage else [pb.ChatDelta(content=answer.tokens[sent])]
                    sent += 1
                    self._tally.tokens += 1
                    yield pb.Reply(message=message, tokens=sent, chat_deltas=deltas)
            if answer.stop:
                context.set_trailing_metadata(((STOP_SEQUENCE, json.dumps(answer.stop)),))
            generated_s = anyio.current_time() - began - script.delay_s
            yield pb.Reply(
                tokens=sent,
                prompt_tokens=answer.prompt_tokens,
                timing_prompt_processing=1000 * script.delay_s,
                timing_token_generation=1000 * max(generated_s, 0.0),
                logprobs=_logprobs(request, answer),
            )

    async def Embedding(self, request: pb.PredictOptions, context: Context) -> pb.EmbeddingResult:
        script = self._script(request.Metadata)
        await pause(script)
        text = request.Embeddings or " ".join(str(number) for number in request.EmbeddingTokens)
        return pb.EmbeddingResult(
            embeddings=words.unit_vector(text, script.dim),
            tokens=1,
            dim=script.dim,
            prompt_tokens=len(words.split_tokens(text)),
            layout=pb.EMBEDDING_LAYOUT_FINAL,
        )

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResult:
        await pause(self._script({}))
        documents = list(request.documents)
        best = words.ranked(request.query, documents)[: request.top_n or None]
        tokens = sum(len(words.split_tokens(text)) for text in (request.query, *documents))
        return pb.RerankResult(
            usage=pb.Usage(total_tokens=tokens, prompt_tokens=tokens),
            results=[
                pb.DocumentResult(index=index, text=documents[index], relevance_score=score)
                for score, index in best
            ],
        )

    async def TokenizeString(self, request: pb.PredictOptions, context: Context) -> pb.TokenizationResponse:
        await pause(self._script(request.Metadata))
        tokens = words.prompt_tokens(request)
        self._learn(tokens)
        return pb.TokenizationResponse(length=len(tokens), tokens=[words.token_id(token) for token in tokens])

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        await pause(self._script({}))
        return pb.DetokenizeResponse(
            content="".join(self._vocabulary.get(number, _WORD_UNKNOWN) for number in request.tokens)
        )

    async def Status(self, request: pb.HealthMessage, context: Context) -> pb.StatusResponse:
        if self._options is None:
            return pb.StatusResponse(state=pb.StatusResponse.UNINITIALIZED)
        busy = self._tally.active > 0
        return pb.StatusResponse(state=pb.StatusResponse.BUSY if busy else pb.StatusResponse.READY)

    async def GetMetrics(self, request: pb.MetricsRequest, context: Context) -> pb.MetricsResponse:
        tally = self._tally
        return pb.MetricsResponse(
            prompt_json_for_slot=json.dumps(asdict(tally)),
            tokens_generated=tally.tokens,
            prompt_tokens_processed=tally.prompt_tokens,
        )

    async def ModelMetadata(self, request: pb.ModelOptions, context: Context) -> pb.ModelMetadataResponse:
        return pb.ModelMetadataResponse(media_marker="<__media__>")

    def _script(self, metadata: Mapping[str, str]) -> Script:
        """What the model's options say, and above them the request's metadata."""
        if self._options is None:
            raise ModelNotLoaded
        try:
            return read_script({**self._options, **metadata})
        except ValueError as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error

    def _learn(self, tokens: Sequence[str]) -> None:
        """An id is made from its word; the way back is known for the words met last."""
        for token in tokens:
            self._vocabulary[words.token_id(token)] = token
            self._vocabulary.move_to_end(words.token_id(token))
        while len(self._vocabulary) > _WORDS_REMEMBERED_MAX:
            self._vocabulary.popitem(last=False)


def _logprobs(request: pb.PredictOptions, answer: EchoAnswer) -> bytes:
    if request.Logprobs <= 0 and request.TopLogprobs <= 0:
        return b""
    return json.dumps(words.logprobs_of(answer.tokens, request.TopLogprobs)).encode()
