"""A replica that speaks OpenAI's HTTP.

Clients that speak it too get the answer as it comes, by a relay that does not understand it: only the
model's name is exchanged where the server knows it by another, and tokens are counted in passing. For
clients of another API it is decoded.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
from anyio.lowlevel import checkpoint

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.inference.answers import (
    NOTHING,
    AnswerFormat,
    AnswerSink,
    ByteSink,
    FinishReason,
    TextSink,
    Usage,
    Vector,
)
from remuda.inference.failures import Fault, RequestUnsupported, UpstreamFailed
from remuda.inference.large_bodies import outlined
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest, TokenizeRequest, answer_count
from remuda.upstreams.http.client import HttpConnection, Pool, ServerAddress, body_of, json_head
from remuda.upstreams.http.openai_decoder import (
    AnswerPart,
    StreamDecoder,
    embeddings_in,
    scores_in,
    vector_of,
    whole_text,
)
from remuda.upstreams.http.paid_requests import bounded, limit_name
from remuda.upstreams.http.refusals import (
    EVENTS,
    JSON,
    REFUSAL_HEADER,
    UNREAD_HEADER,
    expect_type,
    failure,
    in_words,
    is_openai_error,
    own_words,
    server_failure,
    without_key,
)
from remuda.upstreams.http.relaying import Events, Renamer, usage_in, with_members
from remuda.upstreams.http.tokenizing import tokens_of

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
        for index, delta, reason, stop_sequence in parts:
            if not 0 <= index < self._count:
                raise UpstreamFailed(Fault.BROKE, f"the backend gave answer {index} of {self._count}")
            self._begun.add(index)
            if index in self._finished:
                continue
            if delta is not NOTHING:
                self._note_token()
            if reason is not None:
                self._finished.add(index)
                self._call.tally.stop_sequence = stop_sequence
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
        if usage is None:
            await self._sink.end(Usage(tally.prompt_tokens, tally.completion_tokens))
            return
        if self._count > 1:
            usage = usage._replace(prompt_ms=None, completion_ms=None)
        _note(self._call, usage)
        await self._sink.end(usage)

    def _note_token(self) -> None:
        """Until the server says how many there were, each part counts as one."""
        tally = self._call.tally
        self._tokens += 1
        tally.completion_tokens = self._tokens
        tally.token_came(self._clock.monotonic())


async def _whole_body(answer: HttpConnection) -> bytes:
    expect_type(answer.headers, JSON)
    body = await body_of(answer, BODY_BYTES_MAX)
    if len(body) > BODY_BYTES_MAX:
        words = f"the backend's answer exceeds {BODY_BYTES_MAX >> 20} MiB"
        raise UpstreamFailed(Fault.FAILED, words, hint="ask for less at once, or for a stream")
    return body


def _note(call: InferenceCall, usage: Usage) -> None:
    call.tally.prompt_tokens, call.tally.completion_tokens = usage.prompt_tokens, usage.completion_tokens
    call.tally.usage_told = True


WHOLE_BYTES_MAX: Final = 1 << 20  # An answer up to here is sent when complete, a longer one as it comes.
RENAMED_AT_ONCE_BYTES: Final = 16 << 10  # Logprobs have a mark every few bytes, each of which is looked at.
ERROR_BYTES_MAX: Final = 64 << 10
_ERROR: Final = b'"error"'
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
        self._heads = {kind: _head_of(endpoint, path) for kind, path in _PATHS.items()}
        self._pool = pool
        self._clock = clock

    @property
    def heard_s(self) -> float:
        """When it said anything to a request that is under way, by the loop's clock."""
        return -math.inf if self._address is None else self._pool.heard_s(self._address)

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        """As inference.model.Upstream has it."""
        if isinstance(call.request, TokenizeRequest):
            await sink.tokens(await tokens_of(self._ask, call, call.request, self._endpoint.model))
            return
        if call.kind not in self._heads:
            raise RequestUnsupported(
                f"{call.model.id} is served over HTTP, and files are only sent to backends that speak gRPC"
            )
        relay = None if self._must_count(call) else sink.relay(AnswerFormat.OPENAI)
        address = self._server()
        body = await self._body(call, decoded=relay is None)
        head = b"%s%d\r\n\r\n" % (self._heads[call.kind], len(body))
        answer = await self._pool.exchange(address, head, body, streamed=call.stream)
        try:
            if not 200 <= answer.status < 300:
                call.tally.usage_told = answer.status < 500  # A request that is refused takes nothing.
                await self._refuse(answer, relay, begun=sink.begun)
            elif relay is None:
                await pass_on_typed(answer, call, sink, self._clock)
            elif call.stream:
                await self._relay_stream(answer, call, relay)
            else:
                await _relay_whole(answer, call, relay)
        except UpstreamFailed as failed:
            raise own_words(failed, self._endpoint) from None
        finally:
            self._pool.release(answer)

    def _server(self) -> ServerAddress:
        if self._address is None:
            where = self._endpoint
            self._address = ServerAddress.parsed(where.address, encrypted=where.encrypted)
        return self._address

    async def _body(self, call: InferenceCall, *, decoded: bool) -> bytes:
        """What the server is sent: as the client wrote it, but for what it has to be asked otherwise."""
        changed = _changed_members(call, self._endpoint.model or call.model.id, decoded=decoded)
        if call.paid:
            limit = (
                {limit_name(call.kind, self._endpoint.address): call.max_tokens} if call.max_tokens else {}
            )
            return await rewritten(call.body, partial(bounded, self._endpoint.server, {**changed, **limit}))
        return await rewritten(call.body, partial(with_members, changed=changed)) if changed else call.body

    def _must_count(self, call: InferenceCall) -> bool:
        """Some servers tell what a stream took only if they are asked to, which a client may not have done;
        where it is paid for it has to be known."""
        if not (call.paid and call.stream):
            return False
        options = getattr(call.request, "stream_options", None)
        return options is None or not options.include_usage

    async def _ask(self, path: str, body: bytes) -> bytes:
        """What is answered to this, beside the paths that every server has."""
        address = self._server()
        head = b"%s%d\r\n\r\n" % (_head_of(self._endpoint, path), len(body))
        answer = await self._pool.exchange(address, head, body)
        try:
            if not 200 <= answer.status < 300:
                await self._refuse(answer, None, begun=False)
            return await _whole_body(answer)
        except UpstreamFailed as failed:
            raise own_words(failed, self._endpoint) from None
        finally:
            self._pool.release(answer)

    async def _refuse(self, answer: HttpConnection, relay: ByteSink | None, *, begun: bool) -> None:
        """Pass an error on, or raise what it means."""
        body = without_key(await body_of(answer, ERROR_BYTES_MAX), self._endpoint)
        if server := self._endpoint.server:
            failed = server_failure(server, answer.status, answer.headers, body)
        else:
            refusal, unread = answer.headers.get(REFUSAL_HEADER, b""), UNREAD_HEADER in answer.headers
            failed = failure(answer.status, refusal, body, unread=unread)
        if failed is not None:
            raise failed
        if relay is None or begun or not is_openai_error(body):
            words = in_words(body) or f"the backend refused the request with HTTP status {answer.status}"
            raise UpstreamFailed(Fault.REFUSED, words, status=answer.status)
        await relay.begin(answer.status, JSON)
        await relay.write(body)

    async def _relay_stream(self, answer: HttpConnection, call: InferenceCall, relay: ByteSink) -> None:
        content_type = expect_type(answer.headers, EVENTS)
        events, tally, begun = Events(_renamer(call, by_line=True)), call.tally, False
        try:
            while piece := await answer.piece():
                if self._endpoint.server and _ERROR in piece:
                    piece = without_key(piece, self._endpoint)
                passed = events.feed(piece)
                if events.chunks != tally.completion_tokens:
                    tally.completion_tokens = events.chunks
                    tally.token_came(self._clock.monotonic())
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


def _head_of(endpoint: ReplicaEndpoint, path: str) -> bytes:
    token = (f"Authorization: Bearer {endpoint.token}",) if endpoint.token else ()
    return json_head(endpoint, path, *token)


def _changed_members(call: InferenceCall, model: str, *, decoded: bool) -> Mapping[str, object]:
    """What the server, which knows the model by this name, is asked otherwise than the client wrote it."""
    changed: dict[str, object] = {}
    if call.request.model != model:
        changed["model"] = model
    if decoded and call.stream:
        changed["stream_options"] = {"include_usage": True}
    if decoded and call.kind is RequestKind.EMBEDDING:
        changed["encoding_format"] = "float"
    return changed


async def rewritten(body: bytes, rewrite: Callable[[bytes], bytes]) -> bytes:
    """Of a large request only the outline is parsed, so that it does not block the loop."""
    if len(body) <= limits.PARSED_AT_ONCE_BYTES_MAX:
        return rewrite(body)
    outline = await outlined(body)
    return await outline.filled(rewrite(outline.text))


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
        call.tally.usage_told = True
