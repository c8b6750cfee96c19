"""OpenAI's answers as bytes: chats and completions, whole or as streams of server-sent events, embeddings
and rankings. Pure; events of a stream are spliced from templates: one is made per token.
"""

import array
import base64
import math
import sys
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final

import msgspec

from remuda.accounts.limit_state import LimitState
from remuda.core.errors import RemudaError
from remuda.core.slices import Budget, Sliced
from remuda.gateway.inference.api_format import (
    EVENT_END,
    EVENT_START,
    SSE,
    EventStreamFormat,
    HeaderFields,
    HeaderNames,
    ended,
    limit_headers,
)
from remuda.gateway.inference.floats import short_floats
from remuda.gateway.inference.text_answers import Choice, made_up_id
from remuda.gateway.openai.errors import ErrorResponse, refusal
from remuda.inference.answers import NOTHING, Delta, FinishReason, Score, ToolCallDelta, Usage, Vector
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest

_DURATIONS_MAX: Final = 64
DONE: Final = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """`data` is JSON on one line."""
    return EVENT_START + data + EVENT_END


_LIMIT_HEADERS: Final = HeaderNames.of("x-ratelimit-{what}-{of}")


class OpenAiFormat(EventStreamFormat):
    """Implements gateway.client_response.ApiFormat."""

    def error(self, error: RemudaError) -> ErrorResponse:
        return refusal(error)

    def limit_headers(self, limits: Sequence[LimitState]) -> HeaderFields:
        return limit_headers(limits, _LIMIT_HEADERS, _reset)

    def last_event(self, body: bytes, written: bytes) -> bytes:
        """Whatever was `written` last is ended first."""
        return ended(written) + event(body) + DONE


def _reset(limit: LimitState) -> bytes:
    return _duration(math.ceil(limit.resets_in_s))


@lru_cache(_DURATIONS_MAX)  # Those of all answers of a second are the same few.
def _duration(seconds: int) -> bytes:
    """As OpenAI writes it: 1s, 6m0s."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return b"%dh%dm%ds" % (hours, minutes, seconds)
    return b"%dm%ds" % (minutes, seconds) if minutes else b"%ds" % seconds


OPENAI: Final = OpenAiFormat()


_encode: Final = msgspec.json.Encoder().encode


class ChatRenderer:
    stream_type: Final = SSE

    def __init__(self, call: InferenceCall, request: ChatRequest) -> None:
        self._call = call
        self._model = request.model
        options = request.stream_options
        self._includes_usage = options is not None and options.include_usage
        self._tail = (b',"usage":null}' if self._includes_usage else b"}") + EVENT_END
        self._unfinished = b'},"finish_reason":null}]' + self._tail
        self._starts: dict[int, bytes] = {}  # Of answers that are open.
        self._known_calls: set[tuple[int, int]] = set()

    @cached_property
    def _head(self) -> bytes:
        """Of each event."""
        return EVENT_START + _head(self._call, "chatcmpl", "chat.completion.chunk", self._model)

    def piece(self, index: int, delta: Delta) -> bytes:
        text, reasoning, calls, logprobs = delta
        start = self._starts.get(index)
        if start is None:
            return self._opening(index) + self.piece(index, delta)
        if text and not reasoning and not calls and not logprobs:
            return start + b'"content":' + _encode(text) + self._unfinished
        parts = []
        if reasoning:
            thought = _encode(reasoning)  # Clients look for it under either name.
            parts.append(b'"reasoning_content":%b,"reasoning":%b' % (thought, thought))
        if text:
            parts.append(b'"content":' + _encode(text))
        if calls:
            pieces = b",".join(self._call_piece(index, call) for call in calls)
            parts.append(b'"tool_calls":[' + pieces + b"]")
        probabilities = b'},"logprobs":{"content":%b}' % logprobs if logprobs else b"}"
        return start + b",".join(parts) + probabilities + b',"finish_reason":null}]' + self._tail

    def closing(self, index: int, reason: FinishReason, last: Delta) -> bytes:
        before = b"" if index in self._starts else self._opening(index)
        if last != NOTHING:
            before += self.piece(index, last)
        return before + self._starts[index] + b'},"finish_reason":"%b"}]' % reason.encode() + self._tail

    def ending(self, usage: Usage) -> bytes:
        return _usage_event(self._head, usage) + DONE if self._includes_usage else DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        rendered = b",".join(_chat_choice(index, choice) for index, choice in enumerate(choices))
        head = _head(self._call, "chatcmpl", "chat.completion", self._model)
        return b'%b,"choices":[%b],%b}' % (head, rendered, _usage(usage))

    def _opening(self, index: int) -> bytes:
        start = self._starts[index] = b'%b,"choices":[{"index":%d,"delta":{' % (self._head, index)
        return start + b'"role":"assistant","content":""' + self._unfinished

    def _call_piece(self, index: int, call: ToolCallDelta) -> bytes:
        arguments = _encode(call.arguments)
        if (index, call.index) in self._known_calls:
            return b'{"index":%d,"function":{"arguments":%b}}' % (call.index, arguments)
        self._known_calls.add((index, call.index))
        call_id = call.id or made_up_id(self._call, index, call.index)
        return b'{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}' % (
            call.index,
            _encode(call_id),
            _encode(call.name),
            arguments,
        )


class CompletionRenderer:
    """Before each answer it tells the prompt, where the client asked for that."""

    stream_type: Final = SSE

    def __init__(self, call: InferenceCall, request: CompletionRequest) -> None:
        self._call = call
        self._model = request.model
        self._prompts = _prompts(request) if request.echo else ()
        self._answers_per_prompt = request.n or 1
        options = request.stream_options
        self._includes_usage = options is not None and options.include_usage
        self._head = EVENT_START + _head(call, "cmpl", "text_completion", request.model)
        self._tail = (b',"usage":null}' if self._includes_usage else b"}") + EVENT_END
        self._sent_chars: dict[
            int, int
        ] = {}  # Characters of open answers: the offsets of tokens are asked for.

    def piece(self, index: int, delta: Delta) -> bytes:
        sent_chars = self._sent_chars.get(index)
        if sent_chars is None:
            return self._opening(index) + self.piece(index, delta)
        logprobs = _logprobs_in_columns(delta.logprobs, sent_chars) if delta.logprobs else b"null"
        self._sent_chars[index] = sent_chars + len(delta.text)
        return self._event(index, _encode(delta.text), logprobs, b"null")

    def closing(self, index: int, reason: FinishReason, last: Delta) -> bytes:
        before = b"" if index in self._sent_chars else self._opening(index)
        if last != NOTHING:
            before += self.piece(index, last)
        return before + self._event(index, b'""', b"null", _encode(reason))

    def ending(self, usage: Usage) -> bytes:
        return _usage_event(self._head, usage) + DONE if self._includes_usage else DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        rendered = b",".join(self._choice(index, choice) for index, choice in enumerate(choices))
        head = _head(self._call, "cmpl", "text_completion", self._model)
        return b'%b,"choices":[%b],%b}' % (head, rendered, _usage(usage))

    def _opening(self, index: int) -> bytes:
        self._sent_chars[index] = 0
        echoed = self._echoed(index)
        return self.piece(index, Delta(echoed)) if echoed else b""

    def _echoed(self, index: int) -> str:
        return self._prompts[index // self._answers_per_prompt] if self._prompts else ""

    def _choice(self, index: int, choice: Choice) -> bytes:
        echoed = self._echoed(index)
        logprobs = _logprobs_in_columns(choice.logprobs, len(echoed)) if choice.logprobs else b"null"
        return b'{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b}' % (
            _encode(echoed + choice.text),
            index,
            logprobs,
            _encode(choice.finish_reason),
        )

    def _event(self, index: int, text: bytes, logprobs: bytes, finish_reason: bytes) -> bytes:
        return b'%b,"choices":[{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b}]%b' % (
            self._head,
            text,
            index,
            logprobs,
            finish_reason,
            self._tail,
        )


def _prompts(request: CompletionRequest) -> Sequence[str]:
    """Those that can be rendered: tokens cannot."""
    given = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    return [prompt if isinstance(prompt, str) else "" for prompt in given]


class _Likely(msgspec.Struct):
    token: str = ""
    logprob: float = 0.0
    top_logprobs: list["_Likely"] = []


def _logprobs_in_columns(text: bytes, offset: int) -> bytes:
    """As text completions tell them: in columns."""
    tokens = msgspec.json.decode(text, type=list[_Likely])
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return _encode(
        {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {other.token: other.logprob for other in token.top_logprobs} for token in tokens
            ],
            "text_offset": offsets,
        }
    )


def _head(call: InferenceCall, prefix: str, kind: str, model: str) -> bytes:
    """The object without its end."""
    return b'{"id":%b,"object":"%b","created":%d,"model":%b' % (
        _encode(f"{prefix}-{call.request_id}"),
        kind.encode(),
        call.created,
        _encode(model),
    )


def _usage_event(head: bytes, usage: Usage) -> bytes:
    return b'%b,"choices":[],%b}' % (head, _usage(usage)) + EVENT_END


def _usage(usage: Usage) -> bytes:
    """Members of an answer. What is not known is left out."""
    cached, reasoning = usage.cached_tokens, usage.reasoning_tokens
    return b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d%b%b}%b' % (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        b"" if cached is None else b',"prompt_tokens_details":{"cached_tokens":%d}' % cached,
        b"" if reasoning is None else b',"completion_tokens_details":{"reasoning_tokens":%d}' % reasoning,
        b"" if usage.prompt_ms is None or usage.completion_ms is None else _timings(usage),
    )


class _Timings(msgspec.Struct):
    """As clients of llama.cpp know them."""

    prompt_n: int  # Tokens that were computed.
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    cache_n: int | msgspec.UnsetType = msgspec.UNSET


def _timings(usage: Usage) -> bytes:
    read = usage.prompt_tokens - (usage.cached_tokens or 0)
    prompt_ms, completion_ms = usage.prompt_ms or 0.0, usage.completion_ms or 0.0
    timings = _Timings(
        read,
        prompt_ms,
        *_rates(read, prompt_ms),
        usage.completion_tokens,
        completion_ms,
        *_rates(usage.completion_tokens, completion_ms),
        msgspec.UNSET if usage.cached_tokens is None else usage.cached_tokens,
    )
    return b',"timings":' + _encode(timings)


def _rates(tokens: int, took_ms: float) -> tuple[float, float]:
    """Milliseconds for each token, tokens in a second; 0 where there is nothing to divide by."""
    return (took_ms / tokens if tokens else 0.0, tokens * 1000 / took_ms if took_ms else 0.0)


def _chat_choice(index: int, choice: Choice) -> bytes:
    message: dict[str, object] = {"role": "assistant", "content": choice.text}
    if choice.reasoning:
        message["reasoning_content"] = message["reasoning"] = choice.reasoning
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.calls
        ]
    logprobs = b',"logprobs":{"content":%b}' % choice.logprobs if choice.logprobs else b""
    return b'{"index":%d,"message":%b%b,"finish_reason":%b}' % (
        index,
        _encode(message),
        logprobs,
        _encode(choice.finish_reason),
    )


_STEPS_MAX: Final = 1 << 40  # Never reached: the budget only cuts the work into slices.
_FLOATS_PER_STEP: Final = 2


def embedding_list(request: EmbeddingRequest, vectors: Sequence[Vector], usage: Usage) -> Sliced[bytes]:
    base64_wanted = request.encoding_format == "base64"
    data, budget = list[msgspec.Raw](), Budget("the list of embeddings", _STEPS_MAX)
    for index, vector in enumerate(vectors):
        if budget.spend(len(vector) // _FLOATS_PER_STEP):
            yield
        embedding = _packed(vector) if base64_wanted else short_floats(vector)
        data.append(msgspec.Raw(_encode({"object": "embedding", "index": index, "embedding": embedding})))
    counts = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.total_tokens}
    return _encode({"object": "list", "data": data, "model": request.model, "usage": counts})


def rerank_answer(request: RerankRequest, scores: Sequence[Score], usage: Usage) -> bytes:
    best = best_scores(request, scores)
    shortened = short_floats([found.relevance for found in best])
    results = [
        {"index": found.index, "relevance_score": relevance}
        | (
            {}
            if request.return_documents is False
            else {"document": {"text": request.documents[found.index]}}
        )
        for found, relevance in zip(best, shortened, strict=True)
    ]
    counts = {"total_tokens": usage.total_tokens, "prompt_tokens": usage.prompt_tokens}
    return _encode({"model": request.model, "object": "list", "usage": counts, "results": results})


def best_scores(request: RerankRequest, scores: Sequence[Score]) -> Sequence[Score]:
    """Best first, and no more than were asked for, whatever the backend makes of that."""
    known = [found for found in scores if 0 <= found.index < len(request.documents)]
    return sorted(known, key=lambda found: -found.relevance)[: request.top_n or None]


def _packed(vector: Vector) -> str:
    floats = array.array("f", vector)
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()
