"""OpenAI's answers as bytes. Pure; pieces of a stream are spliced from templates: one is made per token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from remuda.inference.model import Call
from remuda.inference.requests import ChatRequest, CompletionRequest
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc.hearing import Said, Usage

DONE: Final = b"data: [DONE]\n\n"
_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """All that one answer came to."""

    content: str = ""
    reasoning: str = ""
    calls: Sequence[ToolCall] = ()
    logprobs: bytes = b""
    finish_reason: str = "stop"


class Pen(Protocol):
    """Writes the answer to one request; answers are told apart by `index`."""

    def opening(self, index: int) -> bytes: ...

    def piece(self, index: int, said: Said) -> bytes: ...

    def closing(self, index: int, finish_reason: str) -> bytes: ...

    def ending(self, usage: Usage) -> bytes: ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes: ...


class ChatPen:
    def __init__(self, call: Call, request: ChatRequest) -> None:
        self._call = call
        self._model = request.model
        options = request.stream_options
        self._tells_usage = options is not None and options.include_usage
        self._head = b"data: " + _head(call, "chatcmpl", "chat.completion.chunk", request.model)
        self._tail = b',"usage":null}\n\n' if self._tells_usage else b"}\n\n"
        self._unfinished = b'},"finish_reason":null}]' + self._tail
        self._starts: dict[int, bytes] = {}
        self._known_calls: set[tuple[int, int]] = set()

    def opening(self, index: int) -> bytes:
        self._starts[index] = b'%b,"choices":[{"index":%d,"delta":{' % (self._head, index)
        return self._starts[index] + b'"role":"assistant","content":""' + self._unfinished

    def piece(self, index: int, said: Said) -> bytes:
        content, reasoning, calls, logprobs = said
        start = self._starts[index]
        if content and not reasoning and not calls and not logprobs:
            return start + b'"content":' + _encode(content) + self._unfinished
        told = []
        if reasoning:
            thought = _encode(reasoning)  # Clients look for it under either name.
            told.append(b'"reasoning_content":%b,"reasoning":%b' % (thought, thought))
        if content:
            told.append(b'"content":' + _encode(content))
        if calls:
            told.append(b'"tool_calls":[' + b",".join(self._call_piece(index, call) for call in calls) + b"]")
        probabilities = b'},"logprobs":' + logprobs if logprobs else b"}"
        return start + b",".join(told) + probabilities + b',"finish_reason":null}]' + self._tail

    def closing(self, index: int, finish_reason: str) -> bytes:
        return self._starts[index] + b'},"finish_reason":"%b"}]' % finish_reason.encode() + self._tail

    def ending(self, usage: Usage) -> bytes:
        if not self._tells_usage:
            return DONE
        return b'%b,"choices":[],"usage":%b}\n\n%b' % (self._head, _usage(usage), DONE)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        told = b",".join(_chat_choice(index, choice) for index, choice in enumerate(choices))
        head = _head(self._call, "chatcmpl", "chat.completion", self._model)
        return b'%b,"choices":[%b],"usage":%b}' % (head, told, _usage(usage))

    def _call_piece(self, index: int, call: pb.ToolCallDelta) -> bytes:
        arguments = _encode(call.arguments)
        if (index, call.index) in self._known_calls:
            return b'{"index":%d,"function":{"arguments":%b}}' % (call.index, arguments)
        self._known_calls.add((index, call.index))
        call_id = call.id or _made_up_id(self._call, index, call.index)
        return b'{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}' % (
            call.index,
            _encode(call_id),
            _encode(call.name),
            arguments,
        )


class CompletionPen:
    """`echoed`: for each answer, the prompt to be told before it."""

    def __init__(self, call: Call, request: CompletionRequest, echoed: Sequence[str]) -> None:
        self._call = call
        self._model = request.model
        self._echoed = echoed
        options = request.stream_options
        self._tells_usage = options is not None and options.include_usage
        self._head = b"data: " + _head(call, "cmpl", "text_completion", request.model)
        self._tail = b',"usage":null}\n\n' if self._tells_usage else b"}\n\n"
        self._told: dict[int, int] = {}  # Characters, where the offsets of tokens are asked for.

    def opening(self, index: int) -> bytes:
        self._told[index] = 0
        echoed = self._echoed[index]
        return self.piece(index, Said(echoed)) if echoed else b""

    def piece(self, index: int, said: Said) -> bytes:
        logprobs = _old_logprobs(said.logprobs, self._told[index]) if said.logprobs else b"null"
        self._told[index] += len(said.content)
        return self._chunk(index, _encode(said.content), logprobs, b"null")

    def closing(self, index: int, finish_reason: str) -> bytes:
        return self._chunk(index, b'""', b"null", _encode(finish_reason))

    def ending(self, usage: Usage) -> bytes:
        if not self._tells_usage:
            return DONE
        return b'%b,"choices":[],"usage":%b}\n\n%b' % (self._head, _usage(usage), DONE)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        told = b",".join(self._choice(index, choice) for index, choice in enumerate(choices))
        head = _head(self._call, "cmpl", "text_completion", self._model)
        return b'%b,"choices":[%b],"usage":%b}' % (head, told, _usage(usage))

    def _choice(self, index: int, choice: Choice) -> bytes:
        echoed = self._echoed[index]
        logprobs = _old_logprobs(choice.logprobs, len(echoed)) if choice.logprobs else b"null"
        return b'{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b}' % (
            _encode(echoed + choice.content),
            index,
            logprobs,
            _encode(choice.finish_reason),
        )

    def _chunk(self, index: int, text: bytes, logprobs: bytes, finish_reason: bytes) -> bytes:
        return b'%b,"choices":[{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b}]%b' % (
            self._head,
            text,
            index,
            logprobs,
            finish_reason,
            self._tail,
        )


def choice_of(call: Call, index: int, said: Sequence[Said], finish_reason: str) -> Choice:
    """All of it, from what was said one after the other."""
    choice = Choice(finish_reason=finish_reason)
    calls: dict[int, ToolCall] = {}
    for part in said:
        choice.content += part.content
        choice.reasoning += part.reasoning
        choice.logprobs = choice.logprobs or part.logprobs
        for delta in part.calls:
            known = calls.setdefault(delta.index, ToolCall(delta.id or _made_up_id(call, index, delta.index)))
            known.name = known.name or delta.name
            known.arguments += delta.arguments
    choice.calls = [calls[number] for number in sorted(calls)]
    return choice


def _made_up_id(call: Call, index: int, number: int) -> str:
    """Of a tool call that its backend left without one."""
    return f"call_{call.request_id}_{index}_{number}"


class _Likely(msgspec.Struct):
    token: str = ""
    logprob: float = 0.0
    top_logprobs: list["_Likely"] = []


class _LikelyTokens(msgspec.Struct):
    content: list[_Likely]


def _old_logprobs(text: bytes, offset: int) -> bytes:
    """As text completions tell them: in columns."""
    tokens = msgspec.json.decode(text, type=_LikelyTokens).content
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


def _head(call: Call, prefix: str, kind: str, model: str) -> bytes:
    """The object without its end."""
    return b'{"id":%b,"object":"%b","created":%d,"model":%b' % (
        _encode(f"{prefix}-{call.request_id}"),
        kind.encode(),
        call.created,
        _encode(model),
    )


def _usage(usage: Usage) -> bytes:
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
    )


def _chat_choice(index: int, choice: Choice) -> bytes:
    message: dict[str, object] = {"role": "assistant", "content": choice.content}
    if choice.reasoning:
        message["reasoning_content"] = message["reasoning"] = choice.reasoning
    if choice.calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.calls
        ]
    logprobs = b',"logprobs":' + choice.logprobs if choice.logprobs else b""
    return b'{"index":%d,"message":%b%b,"finish_reason":%b}' % (
        index,
        _encode(message),
        logprobs,
        _encode(choice.finish_reason),
    )
