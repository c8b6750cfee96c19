"""Text from a backend to a client: streamed piece by piece, or whole; one answer or several side by side."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import anyio

from remuda.core.clock import Clock
from remuda.inference.model import Call, Sink
from remuda.models.memory import padded_context
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits
from remuda.upstreams.grpc.channels import Channel
from remuda.upstreams.grpc.dialects import is_llama
from remuda.upstreams.grpc.exchange import Exchange
from remuda.upstreams.grpc.hearing import NOTHING, Hearing, Usage
from remuda.upstreams.grpc.predicting import Generation
from remuda.upstreams.grpc.rendering import Choice, Pen, choice_of

_EVENTS = b"text/event-stream"
_JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a backend may say nothing."""

    silence_s: float = limits.SILENCE_S  # Within a stream.
    whole_s: float = limits.WHOLE_S  # Before an answer that comes in one piece.


class Telling:
    """The stream in which all answers of one request are told. It begins with the first word of any."""

    def __init__(self, sink: Sink, *, alone: bool) -> None:
        self._sink = sink
        self._begun = False
        self._turn = None if alone else anyio.Lock(fast_acquire=True)

    async def tell(self, data: bytes) -> None:
        if self._turn is None:
            await self._tell(data)
            return
        async with self._turn:
            await self._tell(data)

    async def _tell(self, data: bytes) -> None:
        if not self._begun:
            await self._sink.begin(200, _EVENTS)
            self._begun = True
        await self._sink.write(data)


class Writer:
    """Answers one call for text."""

    def __init__(self, channel: Channel, call: Call, pen: Pen, clock: Clock, patience: Patience) -> None:
        self._channel = channel
        self._call = call
        self._pen = pen
        self._clock = clock
        self._patience = patience
        self._prompt_tokens: dict[int, int] = {}
        self._completion_tokens = 0

    async def stream(self, generations: Sequence[Generation], sink: Sink) -> None:
        alone = len(generations) == 1
        telling = Telling(sink, alone=alone)
        if alone:
            rest = await self._stream(0, generations[0], telling)
        else:
            jobs = [partial(self._tell_all, index, one, telling) for index, one in enumerate(generations)]
            await side_by_side(jobs)
            rest = b""
        await telling.tell(rest + self._pen.ending(self._usage()))

    async def whole(self, generations: Sequence[Generation], sink: Sink) -> None:
        choices: dict[int, Choice] = {}
        await side_by_side(
            [partial(self._whole, index, one, choices) for index, one in enumerate(generations)]
        )
        answer = self._pen.whole([choices[index] for index in range(len(generations))], self._usage())
        await sink.begin(200, _JSON)
        await sink.write(answer)

    async def _tell_all(self, index: int, generation: Generation, telling: Telling) -> None:
        await telling.tell(await self._stream(index, generation, telling))

    async def _stream(self, index: int, generation: Generation, telling: Telling) -> bytes:
        """Tell what is said as it comes; returns what is left to be told."""
        pen, decode = self._pen, pb.Reply.FromString
        hearing = _hearing(self._call, generation, wary=is_llama(self._call.model))
        opening = pen.opening(index)
        try:
            stream = await self._channel.call("PredictStream", *generation.message())
            with Exchange(stream, self._patience.silence_s) as exchange:
                while (message := await exchange.read()) is not None:
                    said = hearing.hear(decode(message))
                    if said is not None:
                        self._heard()
                        await telling.tell(opening + pen.piece(index, said))
                        opening = b""
        finally:  # What was said before it broke off was said, too.
            self._count(generation, hearing.usage)
        last = hearing.end()
        rest = b"" if last == NOTHING else pen.piece(index, last)
        return opening + rest + pen.closing(index, hearing.finish_reason)

    async def _whole(self, index: int, generation: Generation, choices: dict[int, Choice]) -> None:
        stream = await self._channel.call("Predict", *generation.message())
        with Exchange(stream, self._patience.whole_s) as exchange:
            reply = pb.Reply.FromString(await exchange.whole())
        self._heard()
        hearing = _hearing(self._call, generation)
        said = [part for part in (hearing.hear(reply), hearing.end()) if part is not None]
        choices[index] = choice_of(self._call, index, said, hearing.finish_reason)
        self._count(generation, hearing.usage)

    def _heard(self) -> None:
        tally = self._call.tally
        tally.last_token_s = now_s = self._clock.monotonic()
        if tally.first_token_s is None:
            tally.first_token_s = now_s

    def _count(self, generation: Generation, usage: Usage) -> None:
        """A prompt counts once, however many answers it gets."""
        known = self._prompt_tokens.get(generation.prompt, 0)
        self._prompt_tokens[generation.prompt] = max(known, usage.prompt_tokens)
        self._completion_tokens += usage.completion_tokens
        self._call.tally.prompt_tokens = sum(self._prompt_tokens.values())
        self._call.tally.completion_tokens = self._completion_tokens

    def _usage(self) -> Usage:
        return Usage(self._call.tally.prompt_tokens, self._call.tally.completion_tokens)


def _hearing(call: Call, generation: Generation, *, wary: bool = False) -> Hearing:
    return Hearing(
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
