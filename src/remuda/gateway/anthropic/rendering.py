"""Anthropic's answers as bytes: messages, whole or as a stream of events. Pure; events are spliced from
templates: one is made per token.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from remuda.accounts.limit_state import LimitState
from remuda.core.errors import RemudaError
from remuda.gateway.anthropic.errors import AnthropicRefusal, refusal
from remuda.gateway.inference.api_format import (
    EVENT_END,
    SSE,
    EventStreamFormat,
    HeaderFields,
    HeaderNames,
    ended,
    limit_headers,
)
from remuda.gateway.inference.text_answers import Choice, ToolCall, made_up_id
from remuda.inference.answers import Delta, FinishReason, ToolCallDelta, Usage
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_BLOCK: Final = b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":'
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
_BLOCK_END: Final = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_NO_CALL: Final = -1
_LIMIT_HEADERS: Final = HeaderNames.of("anthropic-ratelimit-{of}-{what}")
_encode: Final = msgspec.json.Encoder().encode


class AnthropicFormat(EventStreamFormat):
    """Implements gateway.client_response.ApiFormat."""

    request_id_headers = (b"x-request-id", b"request-id")

    def error(self, error: RemudaError) -> AnthropicRefusal:
        return refusal(error)

    def limit_headers(self, limits: Sequence[LimitState]) -> HeaderFields:
        return limit_headers(limits, _LIMIT_HEADERS, _reset)

    def last_event(self, body: bytes, written: bytes) -> bytes:
        """Streams of this API hold no whole answers: it is the body of an error."""
        return ended(written) + b"event: error\ndata: " + body + EVENT_END


def _reset(limit: LimitState) -> bytes:
    """As RFC 3339 has it, to the second: a third of what strftime takes."""
    at = limit.resets_at
    return b"%04d-%02d-%02dT%02d:%02d:%02dZ" % (at.year, at.month, at.day, at.hour, at.minute, at.second)


ANTHROPIC: Final = AnthropicFormat()


class MessageRenderer:
    """One block is open at a time: it ends where another kind of thing is said, or another tool called."""

    stream_type: Final = SSE

    def __init__(self, call: InferenceCall, request: ChatRequest, *, shows_thinking: bool) -> None:
        self._call = call
        self._request = request
        self._shows_thinking = shows_thinking
        self._begun = False
        self._blocks = 0
        self._open = ""  # text, thinking or tool_use.
        self._said = b""  # How a delta of the open text begins.
        self._calls: dict[int, int] = {}  # The block of each call.
        self._reason = FinishReason.STOP

    def piece(self, index: int, delta: Delta) -> bytes:
        text, reasoning, calls, _ = delta
        if text and self._open == "text" and not reasoning and not calls:
            return self._said + _encode(text) + b"}}\n\n"
        parts = [] if self._begun else [self._opening()]
        if reasoning and self._shows_thinking:
            if self._open != "thinking":
                parts.append(self._block("thinking", b'{"type":"thinking","thinking":"","signature":""}'))
            parts.append(self._delta(b'{"type":"thinking_delta","thinking":%b}' % _encode(reasoning)))
        if text:
            if self._open != "text":
                parts.append(self._block("text", b'{"type":"text","text":""}'))
                self._said = _DELTA % (self._blocks - 1) + b'{"type":"text_delta","text":'
            parts.append(self._said + _encode(text) + b"}}\n\n")
        parts += [self._call_piece(index, call) for call in calls]
        return b"".join(parts)

    def closing(self, index: int, reason: FinishReason, last: Delta) -> bytes:
        said = self.piece(index, last)
        self._reason = reason
        return said + self._end_of_block()

    def ending(self, usage: Usage) -> bytes:
        stop = _stop(self._call, self._request, self._reason, usage, called=bool(self._calls))
        told = b'{"type":"message_delta","delta":{%b},"usage":%b}' % (stop, _usage(usage))
        return b"event: message_delta\ndata: " + told + EVENT_END + _STOP

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        choice = choices[0]
        blocks = []
        if choice.reasoning and self._shows_thinking:
            blocks.append(b'{"type":"thinking","thinking":%b,"signature":""}' % _encode(choice.reasoning))
        if choice.text:
            blocks.append(b'{"type":"text","text":%b}' % _encode(choice.text))
        blocks += [_called(call) for call in choice.calls]
        stop = _stop(self._call, self._request, choice.finish_reason, usage, called=bool(choice.calls))
        return self._message(b",".join(blocks), stop, usage)

    def _opening(self) -> bytes:
        """What the prompt cost is known at the end: no backend says it sooner."""
        self._begun = True
        empty = self._message(b"", b'"stop_reason":null,"stop_sequence":null', Usage())
        return b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n' % empty + PING

    def _message(self, content: bytes, stop: bytes, usage: Usage) -> bytes:
        return b'{"id":%b,"type":"message","role":"assistant","model":%b,"content":[%b],%b,"usage":%b}' % (
            _encode(f"msg_{self._call.request_id}"),
            _encode(self._request.model),
            content,
            stop,
            _usage(usage),
        )

    def _block(self, kind: str, start: bytes) -> bytes:
        """A new one, after the end of the one before."""
        before = self._end_of_block()
        self._open = kind
        self._blocks += 1
        return before + _BLOCK % (self._blocks - 1) + start + b"}\n\n"

    def _end_of_block(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        return _BLOCK_END % (self._blocks - 1)

    def _delta(self, delta: bytes) -> bytes:
        return _DELTA % (self._blocks - 1) + delta + b"}\n\n"

    def _call_piece(self, index: int, call: ToolCallDelta) -> bytes:
        """What a backend adds late to a call still goes to its block, though it is closed."""
        start, block = b"", self._calls.get(call.index)
        if block is None:
            call_id = call.id or made_up_id(self._call, index, call.index)
            named = b'{"type":"tool_use","id":%b,"name":%b,"input":{}}' % (
                _encode(call_id),
                _encode(call.name),
            )
            start = self._block("tool_use", named)
            block = self._calls[call.index] = self._blocks - 1
        if not call.arguments:
            return start
        arguments = b'{"type":"input_json_delta","partial_json":%b}}\n\n' % _encode(call.arguments)
        return start + _DELTA % block + arguments


def _called(call: ToolCall) -> bytes:
    return b'{"type":"tool_use","id":%b,"name":%b,"input":%b}' % (
        _encode(call.id),
        _encode(call.name),
        _input(call.arguments),
    )


def _input(arguments: str) -> bytes:
    """An object. What a model wrote instead, or did not end, is kept as Anthropic advises to."""
    try:
        decoded = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    return _encode(decoded if isinstance(decoded, dict) else {"INVALID_JSON": arguments})


def _stop(
    call: InferenceCall, request: ChatRequest, reason: FinishReason, usage: Usage, *, called: bool
) -> bytes:
    if reason is FinishReason.LENGTH:
        return b'"stop_reason":"%b","stop_sequence":null' % _limit(call, request, usage)
    if called or reason is FinishReason.TOOL_CALLS:
        return b'"stop_reason":"tool_use","stop_sequence":null'
    stopped_at = call.tally.stop_sequence
    if stopped_at in (request.stop or ()):  # Else the model's configuration asked for it.
        return b'"stop_reason":"stop_sequence","stop_sequence":%b' % _encode(stopped_at)
    return b'"stop_reason":"end_turn","stop_sequence":null'


def _limit(call: InferenceCall, request: ChatRequest, usage: Usage) -> bytes:
    """Which of the two was met."""
    short = usage.completion_tokens < (request.max_tokens or 0)
    full = 0 < call.context <= usage.total_tokens + 1
    return b"model_context_window_exceeded" if short and full else b"max_tokens"


def _usage(usage: Usage) -> bytes:
    """Tokens of the prompt that were known from earlier ones do not count as input here. What no backend
    told is null."""
    cached, thought = usage.cached_tokens, usage.reasoning_tokens
    return (
        b'{"input_tokens":%d,"cache_creation_input_tokens":null,"cache_read_input_tokens":%b,'
        b'"output_tokens":%d%b}'
        % (
            max(usage.prompt_tokens - (cached or 0), 0),
            b"null" if cached is None else b"%d" % cached,
            usage.completion_tokens,
            b"" if thought is None else b',"output_tokens_details":{"thinking_tokens":%d}' % thought,
        )
    )
