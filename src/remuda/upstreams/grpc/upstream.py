"""A replica that speaks backend.proto, as the router sees it."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import assert_never

from google.protobuf.message import DecodeError

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid
from remuda.core.gbnf import why_not_parsed
from remuda.core.tasks import TaskOwner
from remuda.inference.answers import AnswerSink, Score, Usage
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall, ReplicaEndpoint
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest
from remuda.inference.slicing import Slicer
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import embeddings, error_mapping, predict_request
from remuda.upstreams.grpc.channels import Channel, GrpcCall
from remuda.upstreams.grpc.grammars import Grammars
from remuda.upstreams.grpc.held_grammars import HeldGrammars, is_bound
from remuda.upstreams.grpc.loading import is_llama
from remuda.upstreams.grpc.media import MARKER
from remuda.upstreams.grpc.predict_request import GenerationRequest, Preset
from remuda.upstreams.grpc.text_generation import GrpcTimeouts, LeftCall, TextGenerator, side_by_side
from remuda.upstreams.http2.failures import CallFailed, GrpcStatus

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
    ) -> None:
        self._channel = Channel(endpoint.address, endpoint.token)
        self._clock = clock
        self._entropy = entropy
        self._timeouts = timeouts or GrpcTimeouts()
        self._translation = translation or SharedTranslation(clock)
        self._preset: Preset | None = None
        self._open = 0
        self._forgotten = False

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
            heard = call.tally.first_token_s is not None
            await self._name_field(call, failed)
            raise error_mapping.failure_of(failed, call.model.id, call.kind, heard=heard) from failed
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
            case other:
                assert_never(other)

    async def _mark_media(self, call: InferenceCall, generations: Sequence[GenerationRequest]) -> None:
        """Some backends have a marker of their own for what a prompt shows, and another one in each life."""
        options = generations[0].options
        if not (options.Prompt and generations[0].media and is_llama(call.model)):
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
        held.check(options)
        texts = sink.texts(len(generations))
        try:
            left = (
                LeftCall(self._translation.left, partial(held.failed, options)) if is_bound(options) else None
            )
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
        asked = embeddings.rerank_request(call, request).SerializeToString()
        result = pb.RerankResult.FromString(await self._whole("Rerank", asked))
        call.tally.prompt_tokens = prompt_tokens = result.usage.prompt_tokens
        scores = [Score(found.index, found.relevance_score) for found in result.results]
        await sink.scores(scores, Usage(prompt_tokens, result.usage.total_tokens - prompt_tokens))

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
