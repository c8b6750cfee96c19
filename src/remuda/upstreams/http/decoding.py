"""Decodes answers of HTTP replicas for clients of APIs other than OpenAI's."""

from collections.abc import Sequence
from typing import Final

from anyio.lowlevel import checkpoint

from remuda.core.clock import Clock
from remuda.inference.answers import NOTHING, AnswerSink, FinishReason, TextSink, Usage, Vector
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest, answer_count
from remuda.upstreams.http.client import HttpConnection, body_of
from remuda.upstreams.http.openai_decoder import (
    AnswerPart,
    StreamDecoder,
    embeddings_in,
    scores_in,
    vector_of,
    whole_text,
)
from remuda.upstreams.http.refusals import EVENTS, JSON, expect_type

BODY_BYTES_MAX: Final = 32 << 20  # Of an answer that is not streamed: all of it is in memory.
_DECODED_AT_ONCE_BYTES: Final = 64 << 10  # Takes about a millisecond if it is numbers.


async def pass_on_typed(answer: HttpConnection, call: InferenceCall, sink: AnswerSink, clock: Clock) -> None:
    """The whole answer, which has begun with a good status."""
    request = call.request
    if isinstance(request, ChatRequest | CompletionRequest):
        count = answer_count(request)
        texts = _Texts(call, sink.texts(count), count, clock)
        await (texts.stream(answer) if call.stream else texts.whole(answer))
        return
    body = await _whole_body(answer)
    if call.kind is RequestKind.RERANK:
        scores, usage = scores_in(body)
        _note(call, usage)
        await sink.scores(scores, usage)
    else:
        embeddings, usage = embeddings_in(body)
        vectors, decoded_bytes = list[Vector](), 0
        for embedding in embeddings:
            vectors.append(vector_of(embedding))
            decoded_bytes += len(bytes(embedding))
            if decoded_bytes >= _DECODED_AT_ONCE_BYTES:
                decoded_bytes = 0
                await checkpoint()
        _note(call, usage)
        await sink.vectors(vectors, usage)


class _Texts:
    """The answers to one chat or completion."""

    def __init__(self, call: InferenceCall, sink: TextSink, count: int, clock: Clock) -> None:
        self._call = call
        self._sink = sink
        self._clock = clock
        self._count = count
        self._begun = set[int]()
        self._finished = set[int]()
        self._tokens = 0

    async def stream(self, answer: HttpConnection) -> None:
        expect_type(answer.headers, EVENTS)
        decoder = StreamDecoder()
        while piece := await answer.piece():
            await self._pass_on(decoder.feed(piece))
        if not decoder.ended:
            raise UpstreamFailed(Fault.BROKE, "the backend's answer stopped before its end")
        await self._end(decoder.usage)

    async def whole(self, answer: HttpConnection) -> None:
        parts, usage = whole_text(await _whole_body(answer))
        await self._pass_on(parts)
        await self._end(usage)

    async def _pass_on(self, parts: Sequence[AnswerPart]) -> None:
        for index, delta, reason in parts:
            if not 0 <= index < self._count:
                raise UpstreamFailed(Fault.BROKE, f"the backend gave answer {index} of {self._count}")
            self._begun.add(index)
            if index in self._finished:
                continue
            if delta is not NOTHING:
                self._note_token()
            if reason is not None:
                self._finished.add(index)
                await self._sink.finish(index, reason, delta)
            elif delta is not NOTHING:
                await self._sink.write(index, delta)

    async def _end(self, usage: Usage | None) -> None:
        if len(self._begun) < self._count:
            words = f"the backend gave {len(self._begun)} of the {self._count} answers asked for"
            raise UpstreamFailed(Fault.FAILED, words)
        for index in sorted(self._begun - self._finished):  # Not every server says why an answer ends.
            await self._sink.finish(index, FinishReason.STOP)
        tally = self._call.tally
        if usage is not None:
            _note(self._call, usage)
        await self._sink.end(Usage(tally.prompt_tokens, tally.completion_tokens))

    def _note_token(self) -> None:
        """Until the server says how many there were, each part counts as one."""
        tally = self._call.tally
        self._tokens += 1
        tally.completion_tokens = self._tokens
        tally.last_token_s = now_s = self._clock.monotonic()
        if tally.first_token_s is None:
            tally.first_token_s = now_s


async def _whole_body(answer: HttpConnection) -> bytes:
    expect_type(answer.headers, JSON)
    body = await body_of(answer, BODY_BYTES_MAX)
    if len(body) > BODY_BYTES_MAX:
        words = f"the backend's answer exceeds {BODY_BYTES_MAX >> 20} MiB"
        raise UpstreamFailed(Fault.FAILED, words, hint="ask for less at once, or for a stream")
    return body


def _note(call: InferenceCall, usage: Usage) -> None:
    call.tally.prompt_tokens, call.tally.completion_tokens = usage
