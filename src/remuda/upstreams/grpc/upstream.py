"""A replica that speaks backend.proto, as the router sees it: text, streamed or whole, one answer or
several side by side; embeddings and rankings. What needs files is in `media_calls`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import anyio
from google.protobuf.message import DecodeError

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid
from remuda.core.gbnf import why_not_parsed
from remuda.core.tasks import TaskOwner
from remuda.inference.answers import AnswerSink, Score, TextSink, Usage
from remuda.inference.failures import Fault, RequestUnsupported, UpstreamFailed
from remuda.inference.large_bodies import Slicer
from remuda.inference.media_requests import ImageRequest, SoundRequest, SpeechRequest, TranscriptionRequest
from remuda.inference.model import InferenceCall, ReplicaEndpoint
from remuda.inference.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RerankRequest,
    TokenizeRequest,
)
from remuda.models.memory import padded_context
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import embeddings, error_mapping, limits, predict_request, tokenizing
from remuda.upstreams.grpc.channels import Channel, GrpcCall
from remuda.upstreams.grpc.grammars import Grammars
from remuda.upstreams.grpc.held_grammars import SCHEMAS, HeldGrammars
from remuda.upstreams.grpc.media import MARKER, NO_MEDIA
from remuda.upstreams.grpc.media_calls import MediaCalls
from remuda.upstreams.grpc.predict_request import GenerationRequest, Preset
from remuda.upstreams.grpc.reply_decoder import ReplyDecoder, cached_tokens_in, stop_sequence_in
from remuda.upstreams.http.request_files import RequestFiles
from remuda.upstreams.http2.failures import CallFailed, GrpcStatus
from remuda.upstreams.http2.stream import Http2Stream


class LeftCall:
    """A call whose client has left, read until the engine's present step is over: an engine that is held in
    it is ended, and no other frontend would learn by which grammar. `failed` gets the failure of a call."""

    def __init__(self, tasks: TaskOwner, failed: Callable[[CallFailed], None]) -> None:
        self._tasks = tasks
        self._failed = failed

    def drain_after_disconnect(self, stream: Http2Stream, *, generating: bool) -> None:
        """Before it is `generating` the engine works on the prompt, which is not worth much waiting."""
        if self._tasks.is_open:
            self._tasks.start(self._read, stream, limits.LEFT_S if generating else limits.LEFT_UNHEARD_S)
        else:
            stream.close()

    async def _read(self, stream: Http2Stream, patience_s: float) -> None:
        with GrpcCall(stream, patience_s) as call:
            try:
                await call.read()
            except CallFailed as failed:
                self._failed(failed)


@dataclass(frozen=True, slots=True)
class GrpcTimeouts:
    """How long a backend may say nothing."""

    silence_s: float = limits.SILENCE_S  # Within a stream.
    whole_s: float = limits.WHOLE_S  # Before an answer that comes in one piece.


class TextGenerator:
    """Answers one call for text."""

    def __init__(
        self,
        channel: Channel,
        call: InferenceCall,
        sink: TextSink,
        clock: Clock,
        timeouts: GrpcTimeouts,
        left: LeftCall | None = None,
    ) -> None:
        """`left` takes over if the client leaves; for answers that are bound by a grammar."""
        self._left = left
        self._channel = channel
        self._call = call
        self._sink = sink
        self._clock = clock
        self._timeouts = timeouts
        self._prompt_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self._completion_tokens = 0
        self._usage = Usage()  # Of the answer that ended last.

    async def run(self, generations: Sequence[GenerationRequest]) -> None:
        """Generate all answers: streamed if the client asked for it."""
        # Of a stream the next word says that a step is over; of a whole answer nothing does before its end.
        bound = self._left is not None and self._call.model.on_llama
        one = self._stream if self._call.stream or bound else self._whole
        if len(generations) == 1:  # As nearly always.
            await one(0, generations[0])
            await self._sink.end(self._usage)
            return
        await side_by_side([partial(one, *numbered) for numbered in enumerate(generations)])
        tally = self._call.tally
        cached = sum(self._cached_tokens.values()) if self._cached_tokens else None
        await self._sink.end(Usage(tally.prompt_tokens, tally.completion_tokens, cached_tokens=cached))

    async def _stream(self, index: int, generation: GenerationRequest) -> None:
        write, parse = self._sink.write, pb.Reply.FromString
        decoder = _decoder(self._call, generation, hold_suspect_text=self._call.model.on_llama)
        try:
            stream = await self._channel.call("PredictStream", *generation.message())
            with GrpcCall(stream, self._timeouts.silence_s) as call:
                try:
                    while (message := await call.read()) is not None:
                        delta = decoder.decode(parse(message))
                        if delta is not None:
                            self._call.tally.token_came(self._clock.monotonic())
                            await write(index, delta)
                except (CallFailed, DecodeError):
                    raise
                except BaseException:  # Its client has left.
                    if self._left is not None:
                        self._left.drain_after_disconnect(
                            call.detached(), generating=bool(decoder.usage.completion_tokens)
                        )
                    raise
        finally:  # What was said before it broke off was said, too.
            self._count(generation, decoder.usage)
        self._note_trailers(generation.prompt, stream.trailers)
        last = decoder.end()
        await self._sink.finish(index, decoder.finish_reason, last)

    async def _whole(self, index: int, generation: GenerationRequest) -> None:
        stream = await self._channel.call("Predict", *generation.message())
        with GrpcCall(stream, self._timeouts.whole_s) as call:
            reply = pb.Reply.FromString(await call.whole())
        self._call.tally.token_came(self._clock.monotonic())
        decoder = _decoder(self._call, generation)
        if (delta := decoder.decode(reply)) is not None:
            await self._sink.write(index, delta)
        self._count(generation, decoder.usage)
        self._note_trailers(generation.prompt, stream.trailers)
        last = decoder.end()
        await self._sink.finish(index, decoder.finish_reason, last)

    def _note_trailers(self, prompt: int, trailers: Mapping[bytes, bytes]) -> None:
        """Of several answers to one prompt the first to be read had to compute most of it."""
        self._call.tally.stop_sequence = stop_sequence_in(trailers)
        if (cached := cached_tokens_in(trailers)) is not None:
            cached = min(cached, self._usage.prompt_tokens)
            self._usage = self._usage._replace(cached_tokens=cached)
            self._cached_tokens[prompt] = min(cached, self._cached_tokens.get(prompt, cached))

    def _count(self, generation: GenerationRequest, usage: Usage) -> None:
        """A prompt counts once, however many answers it gets."""
        self._usage = usage
        known = self._prompt_tokens.get(generation.prompt, 0)
        self._prompt_tokens[generation.prompt] = max(known, usage.prompt_tokens)
        self._completion_tokens += usage.completion_tokens
        self._call.tally.prompt_tokens = sum(self._prompt_tokens.values())
        self._call.tally.completion_tokens = self._completion_tokens


def _decoder(
    call: InferenceCall, generation: GenerationRequest, *, hold_suspect_text: bool = False
) -> ReplyDecoder:
    return ReplyDecoder(
        generation.options.Tokens,
        hold_suspect_text=hold_suspect_text,
        logprobs=generation.logprobs,
        reading=generation.reading,
        thoughts=generation.chat,
        one_call=generation.one_call,
        context=padded_context(call.context) if call.model.on_llama else call.context,
    )


async def side_by_side(jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """All of them, a few at a time. The first failure ends the others, and is raised as it is."""
    if len(jobs) == 1:
        await jobs[0]()
        return
    few = anyio.Semaphore(limits.SIDE_BY_SIDE_MAX, fast_acquire=True)

    async def one(job: Callable[[], Awaitable[None]]) -> None:
        async with few:
            await job()

    try:
        async with anyio.create_task_group() as group:
            for job in jobs:
                group.start_soon(one, job)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _is_bound(options: pb.PredictOptions) -> bool:
    """Whether an engine follows a grammar for these options, given or made by itself."""
    if options.Grammar or options.Tools:
        return True
    told = options.Metadata
    return bool(told) and any(name in told for name in SCHEMAS)


_NO_OPTIONS = pb.ModelOptions().SerializeToString()


class SharedTranslation:
    """Where requests are translated, for all replicas together: in turns, and from what was made before."""

    def __init__(self, clock: Clock) -> None:
        self.slicer = Slicer(clock)
        self.grammars = Grammars()
        self.held = HeldGrammars(clock)
        self.left = TaskOwner()  # Reads calls whose clients have left; without it they end at once.


class GrpcUpstream:
    """Implements inference.model.Upstream, over a connection of its own."""

    def __init__(
        self,
        endpoint: ReplicaEndpoint,
        clock: Clock,
        entropy: Entropy,
        timeouts: GrpcTimeouts | None = None,
        translation: SharedTranslation | None = None,
        files: RequestFiles | None = None,
    ) -> None:
        """Without `files` there are no images, speech and sounds."""
        self._files = files
        self._channel = Channel(endpoint.address, endpoint.token)
        self._clock = clock
        self._entropy = entropy
        self._timeouts = timeouts or GrpcTimeouts()
        self._translation = translation or SharedTranslation(clock)
        self._preset: Preset | None = None
        self._open = 0
        self._forgotten = False

    @property
    def heard_s(self) -> float:
        """When its process said anything, by the loop's clock."""
        return self._channel.heard_s

    @property
    def open_calls(self) -> int:
        return self._open

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        if self._forgotten:
            raise UpstreamFailed(Fault.UNREACHABLE, f"this replica of {call.model.id} is no more")
        self._open += 1
        try:
            await self._serve(call, sink)
        except CallFailed as failed:
            begun = call.tally.first_token_s is not None
            await self._name_field(call, failed)
            translates = isinstance(call.request, TranscriptionRequest) and call.request.translate
            raise error_mapping.failure_of(
                failed, call.model.id, call.kind, begun=begun, translates=translates
            ) from failed
        except DecodeError as error:
            raise error_mapping.undecodable(call.model.id) from error
        finally:
            self._open -= 1
            self._close_if_left()

    async def _name_field(self, call: InferenceCall, failed: CallFailed) -> None:
        """Invalid, with the rule and the field, for a grammar or a schema that the engine could not use."""
        request = call.request
        field = error_mapping.field_not_followed(failed, request)
        if not field:
            return
        reason = ""
        if field == "grammar" and isinstance(request, ChatRequest | CompletionRequest):
            reason = await self._translation.slicer.run(why_not_parsed(request.grammar or ""))
        reason = reason or f"the backend of {call.model.id} says: {error_mapping.words_of(failed)}"
        raise Invalid(f"{field} cannot be used: {reason}", param=field) from failed

    async def aclose(self) -> None:
        """Take no more calls, and hang up when the last one has ended."""
        self._forgotten = True
        self._close_if_left()

    def _close_if_left(self) -> None:
        if self._forgotten and not self._open:
            self._channel.close()

    async def _serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        match call.request:
            case ChatRequest() as request:
                generations = await self._translation.slicer.run(
                    predict_request.chat_generations(self._preset_for(call), call, request, self._draw)
                )
                if generations[0].media is not NO_MEDIA:
                    await self._mark_media(call, generations)
                await self._generate(call, generations, sink)
            case CompletionRequest() as request:
                generations = await self._translation.slicer.run(
                    predict_request.completion_generations(self._preset_for(call), call, request, self._draw)
                )
                await self._generate(call, generations, sink)
            case EmbeddingRequest() as request:
                await self._embed(call, request, sink)
            case RerankRequest() as request:
                await self._rerank(call, request, sink)
            case TokenizeRequest() as request:
                await self._tokenize(call, request, sink)
            case ImageRequest() | TranscriptionRequest() | SpeechRequest() | SoundRequest() as request:
                await self._media(call).serve(call, request, sink)
            case other:
                assert_never(other)

    def _media(self, call: InferenceCall) -> MediaCalls:
        if self._files is None:
            raise RequestUnsupported(f"files of requests to {call.model.id} cannot be sent from here")
        timeouts = self._timeouts
        return MediaCalls(
            self._channel, self._files, self._clock, timeouts.silence_s, timeouts.whole_s, self._draw
        )

    async def _mark_media(self, call: InferenceCall, generations: Sequence[GenerationRequest]) -> None:
        """Some backends have a marker of their own for what a prompt shows, and another one in each life."""
        options = generations[0].options
        if not (options.Prompt and generations[0].media and call.model.on_llama):
            return
        try:
            answer = await self._whole("ModelMetadata", _NO_OPTIONS)
        except CallFailed as failed:
            if failed.code is not GrpcStatus.UNIMPLEMENTED:
                raise
            return
        if marker := pb.ModelMetadataResponse.FromString(answer).media_marker:
            options.Prompt = options.Prompt.replace(MARKER, marker)  # Of all of them.

    async def _generate(
        self, call: InferenceCall, generations: Sequence[GenerationRequest], sink: AnswerSink
    ) -> None:
        options, held = generations[0].options, self._translation.held
        if not _is_bound(options):
            texts = sink.texts(len(generations))
            await TextGenerator(self._channel, call, texts, self._clock, self._timeouts).run(generations)
            return
        held.check(options)
        texts = sink.texts(len(generations))
        left = LeftCall(self._translation.left, partial(held.failed, options))
        try:
            generator = TextGenerator(self._channel, call, texts, self._clock, self._timeouts, left)
            await generator.run(generations)
        except CallFailed as failed:
            held.failed(options, failed)
            raise
        held.answered(options)

    async def _embed(self, call: InferenceCall, request: EmbeddingRequest, sink: AnswerSink) -> None:
        results: dict[int, pb.EmbeddingResult] = {}

        async def embed(index: int, options: pb.PredictOptions) -> None:
            message = await self._whole("Embedding", options.SerializeToString())
            results[index] = pb.EmbeddingResult.FromString(message)

        inputs = embeddings.embedding_options(call, request)
        jobs: list[Callable[[], Awaitable[None]]] = [partial(embed, *one) for one in enumerate(inputs)]
        await side_by_side(jobs)
        in_order = [results[index] for index in range(len(inputs))]
        call.tally.prompt_tokens = sum(result.prompt_tokens for result in in_order)
        made = await self._translation.slicer.run(embeddings.vectors_of(in_order, request.dimensions))
        await sink.vectors(made, Usage(call.tally.prompt_tokens))

    async def _rerank(self, call: InferenceCall, request: RerankRequest, sink: AnswerSink) -> None:
        body = embeddings.rerank_request(call, request).SerializeToString()
        result = pb.RerankResult.FromString(await self._whole("Rerank", body))
        call.tally.prompt_tokens = prompt_tokens = result.usage.prompt_tokens
        scores = [Score(found.index, found.relevance_score) for found in result.results]
        await sink.scores(scores, Usage(prompt_tokens, result.usage.total_tokens - prompt_tokens))

    async def _tokenize(self, call: InferenceCall, request: TokenizeRequest, sink: AnswerSink) -> None:
        async def ask(options: pb.PredictOptions) -> pb.TokenizationResponse:
            answer = await self._whole("TokenizeString", options.SerializeToString())
            return pb.TokenizationResponse.FromString(answer)

        prompt = request.prompt
        if isinstance(prompt, str):
            await sink.tokens(await tokenizing.text_tokens(ask, tokenizing.text_options(call, prompt)))
            return
        generations = await self._translation.slicer.run(
            predict_request.chat_generations(self._preset_for(call), call, prompt, self._draw)
        )
        options = tokenizing.chat_options(call, generations[0])
        await sink.tokens(await tokenizing.chat_tokens(ask, call, options))

    async def _whole(self, method: str, request: bytes) -> bytes:
        with GrpcCall(await self._channel.call(method, request), self._timeouts.silence_s) as call:
            return await call.whole()

    def _preset_for(self, call: InferenceCall) -> Preset:
        """A replica has one model: the last request's is this one's, unless its configuration changed."""
        if self._preset is None or self._preset.config is not call.model:
            self._preset = Preset(call.model, self._translation.grammars)
        return self._preset

    def _draw(self) -> int:
        return int(self._entropy.fraction() * predict_request.SEEDS)
