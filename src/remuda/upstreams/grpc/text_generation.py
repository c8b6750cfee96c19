"""Text from a backend: streamed piece by piece, or whole; one answer or several side by side."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import anyio
from google.protobuf.message import DecodeError

from remuda.core.clock import Clock
from remuda.core.tasks import TaskOwner
from remuda.inference.answers import TextSink, Usage
from remuda.inference.model import InferenceCall
from remuda.models.memory import padded_context
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits
from remuda.upstreams.grpc.channels import Channel, GrpcCall
from remuda.upstreams.grpc.loading import is_llama
from remuda.upstreams.grpc.predict_request import GenerationRequest
from remuda.upstreams.grpc.reply_decoder import ReplyDecoder
from remuda.upstreams.http2.failures import CallFailed
from remuda.upstreams.http2.stream import Http2Stream


class LeftCall:
    """A call whose client has left, read until the engine's present step is over: an engine that is held in
    it is ended, and nobody else would learn by which grammar. `failed` is told how the call failed."""

    def __init__(self, tasks: TaskOwner, failed: Callable[[CallFailed], None]) -> None:
        self._tasks = tasks
        self._failed = failed

    def hear_out(self, stream: Http2Stream, *, generating: bool) -> None:
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
        self._completion_tokens = 0

    async def run(self, generations: Sequence[GenerationRequest]) -> None:
        """Generate all answers: streamed if the client asked for it."""
        # Of a stream the next word says that a step is over; of a whole answer nothing does before its end.
        bound = self._left is not None and is_llama(self._call.model)
        one = self._stream if self._call.stream or bound else self._whole
        if len(generations) == 1:  # As nearly always.
            await one(0, generations[0])
        else:
            await side_by_side([partial(one, *numbered) for numbered in enumerate(generations)])
        tally = self._call.tally
        await self._sink.end(Usage(tally.prompt_tokens, tally.completion_tokens))

    async def _stream(self, index: int, generation: GenerationRequest) -> None:
        write, parse = self._sink.write, pb.Reply.FromString
        decoder = _decoder(self._call, generation, wary=is_llama(self._call.model))
        try:
            stream = await self._channel.call("PredictStream", *generation.message())
            with GrpcCall(stream, self._timeouts.silence_s) as call:
                try:
                    while (message := await call.read()) is not None:
                        delta = decoder.decode(parse(message))
                        if delta is not None:
                            self._note_token()
                            await write(index, delta)
                except (CallFailed, DecodeError):
                    raise
                except BaseException:  # Its client has left.
                    if self._left is not None:
                        self._left.hear_out(call.detached(), generating=bool(decoder.usage.completion_tokens))
                    raise
        finally:  # What was said before it broke off was said, too.
            self._count(generation, decoder.usage)
        last = decoder.end()
        await self._sink.finish(index, decoder.finish_reason, last)

    async def _whole(self, index: int, generation: GenerationRequest) -> None:
        stream = await self._channel.call("Predict", *generation.message())
        with GrpcCall(stream, self._timeouts.whole_s) as call:
            reply = pb.Reply.FromString(await call.whole())
        self._note_token()
        decoder = _decoder(self._call, generation)
        if (delta := decoder.decode(reply)) is not None:
            await self._sink.write(index, delta)
        self._count(generation, decoder.usage)
        last = decoder.end()
        await self._sink.finish(index, decoder.finish_reason, last)

    def _note_token(self) -> None:
        tally = self._call.tally
        tally.last_token_s = now_s = self._clock.monotonic()
        if tally.first_token_s is None:
            tally.first_token_s = now_s

    def _count(self, generation: GenerationRequest, usage: Usage) -> None:
        """A prompt counts once, however many answers it gets."""
        known = self._prompt_tokens.get(generation.prompt, 0)
        self._prompt_tokens[generation.prompt] = max(known, usage.prompt_tokens)
        self._completion_tokens += usage.completion_tokens
        self._call.tally.prompt_tokens = sum(self._prompt_tokens.values())
        self._call.tally.completion_tokens = self._completion_tokens


def _decoder(call: InferenceCall, generation: GenerationRequest, *, wary: bool = False) -> ReplyDecoder:
    return ReplyDecoder(
        generation.options.Tokens,
        wary=wary,
        logprobs=generation.logprobs,
        reading=generation.reading,
        thoughts=generation.chat,
        context=padded_context(call.context) if is_llama(call.model) else call.context,
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
