"""A server that speaks Anthropic's API, for clients of any API: chats are translated, answers decoded."""

from typing import Final

from remuda.core.clock import Clock
from remuda.inference.answers import NOTHING, AnswerSink, FinishReason, TextSink
from remuda.inference.failures import Fault, RequestUnsupported, UpstreamFailed
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind
from remuda.inference.requests import ChatRequest
from remuda.upstreams.anthropic.conversation import conversation_of
from remuda.upstreams.anthropic.message_decoder import MessageDecoder
from remuda.upstreams.http.client import HttpConnection, Pool, ServerAddress, body_of, json_head
from remuda.upstreams.http.refusals import (
    EVENTS,
    JSON,
    expect_type,
    in_words,
    own_words,
    server_failure,
    without_key,
)

VERSION: Final = "2023-06-01"  # Of the API; it has not changed since.
_PATH: Final = "/v1/messages"
_BODY_BYTES_MAX: Final = 32 << 20
_ERROR_BYTES_MAX: Final = 64 << 10


class AnthropicUpstream:
    def __init__(self, endpoint: ReplicaEndpoint, pool: Pool, clock: Clock) -> None:
        self._endpoint = endpoint
        token = (f"x-api-key: {endpoint.token}",) if endpoint.token else ()
        self._head = json_head(endpoint, _PATH, f"anthropic-version: {VERSION}", *token)
        self._pool = pool
        self._clock = clock

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        """As inference.model.Upstream has it."""
        if call.kind is not RequestKind.CHAT or not isinstance(call.request, ChatRequest):
            raise RequestUnsupported(f"the server {self._endpoint.server} answers chats only")
        where = self._endpoint
        body = conversation_of(call.request, where.model, max_tokens=call.max_tokens)
        address = ServerAddress.parsed(where.address, encrypted=where.encrypted)
        head = b"%s%d\r\n\r\n" % (self._head, len(body))
        answer = await self._pool.exchange(address, head, body, streamed=call.stream)
        try:
            if answer.status != 200:
                call.tally.usage_told = answer.status < 500  # A request that is refused takes nothing.
                raise await self._refused(answer)
            await self._pass_on(answer, call, sink.texts(1))
        except UpstreamFailed as failed:
            raise own_words(failed, where) from None
        finally:
            self._pool.release(answer)

    async def _pass_on(self, answer: HttpConnection, call: InferenceCall, sink: TextSink) -> None:
        decoder = MessageDecoder()
        if call.stream:
            expect_type(answer.headers, EVENTS)
            while not decoder.ended and (piece := await answer.piece()):
                for delta in decoder.feed(piece):
                    self._note_token(call)
                    await sink.write(0, delta)
        else:
            expect_type(answer.headers, JSON)
            body = await body_of(answer, _BODY_BYTES_MAX)
            if len(body) > _BODY_BYTES_MAX:
                raise UpstreamFailed(Fault.FAILED, f"the answer exceeds {_BODY_BYTES_MAX >> 20} MiB")
            for delta in decoder.whole(body):
                self._note_token(call)
                await sink.write(0, delta)
        if not decoder.ended:
            raise UpstreamFailed(Fault.BROKE, "the server's answer stopped before its end")
        tally, usage = call.tally, decoder.usage
        tally.prompt_tokens, tally.completion_tokens = usage.prompt_tokens, usage.completion_tokens
        tally.kept_tokens = decoder.kept_tokens
        tally.usage_told, tally.stop_sequence = True, decoder.stop_sequence
        await sink.finish(0, decoder.finished or FinishReason.STOP, NOTHING)
        await sink.end(usage)

    def _note_token(self, call: InferenceCall) -> None:
        """Until the server says how many there were, each part counts as one."""
        tally = call.tally
        tally.completion_tokens += 1
        tally.token_came(self._clock.monotonic())

    async def _refused(self, answer: HttpConnection) -> UpstreamFailed:
        body = without_key(await body_of(answer, _ERROR_BYTES_MAX), self._endpoint)
        failed = server_failure(self._endpoint.server, answer.status, answer.headers, body)
        words = in_words(body) or f"HTTP status {answer.status}"
        return failed or UpstreamFailed(
            Fault.REFUSED, f"the server {self._endpoint.server} refuses this: {words}", status=answer.status
        )
