"""A replica that speaks OpenAI's HTTP.

Clients that speak it too get the answer as it comes, by a relay that does not understand it: only the model's
name is exchanged where the server knows it by another, and tokens are counted in passing. For clients of
another API it is decoded (see decoding.py).
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from anyio.lowlevel import checkpoint

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.inference.answers import AnswerFormat, AnswerSink, ByteSink
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind
from remuda.inference.outline import outlined
from remuda.upstreams.http.client import HttpConnection, Pool, ServerAddress, body_of
from remuda.upstreams.http.decoding import pass_on_typed
from remuda.upstreams.http.events import Events, usage_in
from remuda.upstreams.http.model_renaming import Renamer, with_members
from remuda.upstreams.http.refusals import (
    EVENTS,
    JSON,
    REFUSAL_HEADER,
    UNREAD_HEADER,
    expect_type,
    failure,
    in_openai_shape,
    in_words,
)

WHOLE_BYTES_MAX: Final = 1 << 20  # An answer up to here is sent when complete, a longer one as it comes.
RENAMED_AT_ONCE_BYTES: Final = 16 << 10  # Logprobs have a mark every few bytes, each of which is looked at.
ERROR_BYTES_MAX: Final = 64 << 10
_PATHS: Final = {
    RequestKind.CHAT: "/v1/chat/completions",
    RequestKind.COMPLETION: "/v1/completions",
    RequestKind.EMBEDDING: "/v1/embeddings",
    RequestKind.RERANK: "/v1/rerank",
}
_any_object: Final = msgspec.json.Decoder(msgspec.defstruct("AnyObject", ()))


class HttpUpstream:
    """Each server is asked for under `endpoint.path`, with the endpoint's token."""

    def __init__(self, endpoint: ReplicaEndpoint, pool: Pool, clock: Clock) -> None:
        self._endpoint = endpoint
        self._address: ServerAddress | None = (
            None  # Read at the first call, which is what fails if it is none.
        )
        self._heads = {kind: _head(endpoint, path) for kind, path in _PATHS.items()}
        self._pool = pool
        self._clock = clock

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        """As inference.model.Upstream has it."""
        relay = sink.relay(AnswerFormat.OPENAI)
        address = self._address = self._address or ServerAddress.parsed(self._endpoint.address)
        changed = _changed_members(call, decoded=relay is None)
        body = await rewritten(call.body, changed) if changed else call.body
        head = b"%s%d\r\n\r\n" % (self._heads[call.kind], len(body))
        answer = await self._pool.exchange(address, head, body, streamed=call.stream)
        try:
            if not 200 <= answer.status < 300:
                await _refuse(answer, relay, begun=sink.begun)
            elif relay is None:
                await pass_on_typed(answer, call, sink, self._clock)
            elif call.stream:
                await self._relay_stream(answer, call, relay)
            else:
                await _relay_whole(answer, call, relay)
        finally:
            self._pool.release(answer)

    async def _relay_stream(self, answer: HttpConnection, call: InferenceCall, relay: ByteSink) -> None:
        content_type = expect_type(answer.headers, EVENTS)
        events, tally, begun = Events(_renamer(call, by_line=True)), call.tally, False
        try:
            while piece := await answer.piece():
                passed = events.feed(piece)
                if events.chunks != tally.completion_tokens:
                    tally.completion_tokens = events.chunks
                    tally.last_token_s = now_s = self._clock.monotonic()
                    if tally.first_token_s is None:
                        tally.first_token_s = now_s
                if passed:
                    if not begun:  # Not before: until something was said, another replica can take over.
                        await relay.begin(answer.status, content_type)
                        begun = True
                    await relay.write(passed)
            if not events.ended:
                raise UpstreamFailed(Fault.BROKE, "the backend's answer stopped before its end")
        except UpstreamFailed:
            if unfinished := events.breaking_off():
                await relay.write(unfinished)
            raise
        if rest := events.rest():
            await relay.write(rest)
        _note_usage(call, events.tail)


async def _relay_whole(answer: HttpConnection, call: InferenceCall, relay: ByteSink) -> None:
    content_type = expect_type(answer.headers, JSON)
    body = await body_of(answer, WHOLE_BYTES_MAX)
    large = len(body) > WHOLE_BYTES_MAX
    if not large:
        _expect_object(body)
    await relay.begin(answer.status, content_type)
    piece, end, renamer = body, body, _renamer(call)
    while piece:
        for start in range(0, len(piece), RENAMED_AT_ONCE_BYTES):
            if start:
                await checkpoint()
            await relay.write(renamer.feed(piece[start : start + RENAMED_AT_ONCE_BYTES]))
        end = piece
        piece = await answer.piece() if large else b""
    if rest := renamer.rest():
        await relay.write(rest)
    _note_usage(call, end)


async def _refuse(answer: HttpConnection, relay: ByteSink | None, *, begun: bool) -> None:
    """Pass an error on, or raise what it means."""
    body = await body_of(answer, ERROR_BYTES_MAX)
    refusal, unread = answer.headers.get(REFUSAL_HEADER, b""), UNREAD_HEADER in answer.headers
    failed = failure(answer.status, refusal, body, unread=unread)
    if failed is not None:
        raise failed
    if relay is None or begun:
        raise UpstreamFailed(Fault.REFUSED, in_words(body), status=answer.status)
    await relay.begin(answer.status, JSON)
    await relay.write(in_openai_shape(answer.status, body))


def _head(endpoint: ReplicaEndpoint, path: str) -> bytes:
    """All of it but the length of the body."""
    lines = (
        f"POST {endpoint.path}{path} HTTP/1.1",
        f"Host: {endpoint.address}",
        *((f"Authorization: Bearer {endpoint.token}",) if endpoint.token else ()),
        "Content-Type: application/json",
        "Accept-Encoding: identity",
        "Content-Length: ",
    )
    return "\r\n".join(lines).encode()


def _changed_members(call: InferenceCall, *, decoded: bool) -> Mapping[str, object]:
    """What the server is asked otherwise than the client wrote it."""
    changed: dict[str, object] = {}
    if call.request.model != call.model.id:
        changed["model"] = call.model.id
    if decoded and call.stream:
        changed["stream_options"] = {"include_usage": True}
    if decoded and call.kind is RequestKind.EMBEDDING:
        changed["encoding_format"] = "float"
    return changed


async def rewritten(body: bytes, changed: Mapping[str, object]) -> bytes:
    """Of a large request only the outline is parsed, so that it holds nobody up."""
    if len(body) <= limits.PARSED_AT_ONCE_BYTES_MAX:
        return with_members(body, changed)
    outline = await outlined(body)
    return await outline.filled(with_members(outline.text, changed))


def _renamer(call: InferenceCall, *, by_line: bool = False) -> Renamer:
    """Also without an alias: servers answer under names of their own, such as the path of a file."""
    return Renamer(msgspec.json.encode(call.request.model), by_line=by_line)


def _expect_object(body: bytes) -> None:
    try:
        _any_object.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise UpstreamFailed(Fault.BROKE, "the backend's answer is not a JSON object") from None


def _note_usage(call: InferenceCall, text: bytes) -> None:
    if (usage := usage_in(text)) is not None:
        call.tally.prompt_tokens, call.tally.completion_tokens = usage
