"""What answers to all APIs have in common on their way to the client. Text: each part as it comes, or all of
it at once."""

from collections.abc import Sequence
from typing import Final, NoReturn, Protocol

import anyio

from remuda.gateway.inference.text_answers import Choice, TextRenderer, choice_of
from remuda.inference.answers import (
    NOTHING,
    AnswerFormat,
    ByteSink,
    Delta,
    FinishReason,
    MediaSink,
    Score,
    TextSink,
    Tokens,
    Usage,
    Vector,
)
from remuda.inference.model import InferenceCall

JSON: Final = b"application/json"


class ResponseSink(ByteSink, Protocol):
    """The response on the client's connection."""

    @property
    def begun(self) -> bool:
        """Something of the answer was sent."""
        ...

    def spent_s(self) -> float:
        """Since the request came."""
        ...

    @property
    def waited_s(self) -> float:
        """For a replica, and perhaps for its load."""
        ...


class AnswerToClient:
    """An inference.answers.AnswerSink over a response on which bytes are sent, for an API to begin with: it
    says how it renders what its paths are answered with. Nothing else is ever asked of it."""

    __slots__ = ("_call", "_response")

    def __init__(self, call: InferenceCall, response: ResponseSink) -> None:
        self._call = call
        self._response = response

    @property
    def begun(self) -> bool:
        return self._response.begun

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        return None

    def texts(self, count: int) -> TextSink:
        self._not_rendered()

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        self._not_rendered()

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        self._not_rendered()

    async def tokens(self, tokens: Tokens) -> None:
        self._not_rendered()

    def media(self) -> MediaSink:
        self._not_rendered()

    def _not_rendered(self) -> NoReturn:
        raise AssertionError(f"this is no answer to a request of the kind {self._call.kind}")


class StreamedTexts:
    """Each delta is sent at once; the stream begins with the first of any answer. The end of the last answer
    is sent together with the end of the stream."""

    __slots__ = ("_begun", "_closing", "_open", "_renderer", "_response", "_turn")

    def __init__(self, renderer: TextRenderer, response: ByteSink, count: int) -> None:
        self._renderer = renderer
        self._response = response
        self._open = count
        self._turn = anyio.Lock(fast_acquire=True) if count > 1 else None
        self._begun = False
        self._closing = b""

    async def write(self, index: int, delta: Delta) -> None:
        data = self._renderer.piece(index, delta)
        if not data:  # The API does not show it.
            return
        if self._begun and self._turn is None:
            await self._response.write(data)
        else:
            await self._send(data)

    async def finish(self, index: int, reason: FinishReason, last: Delta = NOTHING) -> None:
        self._open -= 1
        closing = self._renderer.closing(index, reason, last)
        if self._open:
            await self._send(closing)
        else:
            self._closing = closing

    async def end(self, usage: Usage) -> None:
        await self._send(self._closing + self._renderer.ending(usage))

    async def _send(self, data: bytes) -> None:
        if self._turn is None:
            await self._begin_and_write(data)
            return
        async with self._turn:
            await self._begin_and_write(data)

    async def _begin_and_write(self, data: bytes) -> None:
        if not self._begun:
            await self._response.begin(200, self._renderer.stream_type)
            self._begun = True
        await self._response.write(data)


class WholeTexts:
    """Collects all answers, and sends them together."""

    __slots__ = ("_call", "_choices", "_deltas", "_renderer", "_response")

    def __init__(self, call: InferenceCall, renderer: TextRenderer, response: ByteSink, count: int) -> None:
        self._call = call
        self._renderer = renderer
        self._response = response
        self._deltas: list[list[Delta]] = [[] for _ in range(count)]
        self._choices: dict[int, Choice] = {}

    async def write(self, index: int, delta: Delta) -> None:
        self._deltas[index].append(delta)

    async def finish(self, index: int, reason: FinishReason, last: Delta = NOTHING) -> None:
        self._choices[index] = choice_of(self._call, index, (*self._deltas[index], last), reason)

    async def end(self, usage: Usage) -> None:
        choices = [self._choices[index] for index in range(len(self._deltas))]
        await send_whole(self._response, self._renderer.whole(choices, usage))


async def send_whole(response: ByteSink, answer: bytes) -> None:
    await response.begin(200, JSON)
    await response.write(answer)


def text_sink(call: InferenceCall, renderer: TextRenderer, response: ByteSink, count: int) -> TextSink:
    """As the client asked: for a stream, or for the whole."""
    if call.stream:
        return StreamedTexts(renderer, response, count)
    return WholeTexts(call, renderer, response, count)
