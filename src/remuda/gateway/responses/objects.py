"""Responses and their items as bytes. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from remuda.gateway.responses.bodies import GivenMembers, ResponsesBody
from remuda.inference.answers import Usage

_encode: Final = msgspec.json.Encoder().encode
NULL: Final = b"null"
PREFIX: Final = "resp_"


class ResponseHead(Struct, frozen=True):
    """What is known of a response before anything is said. `echo`: members of the object, as they were asked
    for."""

    id: str
    created: int
    echo: bytes
    background: bool = False

    def item_id(self, prefix: str, index: int) -> str:
        return f"{prefix}_{self.id.removeprefix(PREFIX)}_{index}"


class ResponseResult(Struct, frozen=True):
    """What a response came to, so far. All texts are JSON."""

    status: str
    output: bytes = b"[]"
    usage: bytes = NULL
    error: bytes = NULL
    incomplete: bytes = NULL
    completed: int = 0  # Unix seconds; 0: not yet, or never.


def response_object(head: ResponseHead, outcome: ResponseResult, *, store: bool) -> bytes:
    return (
        b'{"id":%b,"object":"response","created_at":%d,"status":%b,"background":%b,"completed_at":%b,'
        b'"error":%b,"incomplete_details":%b,%b,"output":%b,"store":%b,"usage":%b}'
    ) % (
        _encode(head.id),
        head.created,
        _encode(outcome.status),
        _encode(head.background),
        b"%d" % outcome.completed if outcome.completed else NULL,
        outcome.error,
        outcome.incomplete,
        head.echo,
        outcome.output,
        _encode(store),
        outcome.usage,
    )


def echo_of(body: ResponsesBody, given: GivenMembers) -> bytes:
    """What was asked for, as members of the response."""
    tools, choice = bytes(given.tools), bytes(given.tool_choice)
    reasoning = body.reasoning
    members: dict[str, object] = {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": body.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "temperature": body.temperature,
        "text": _text_config(body),
        "tool_choice": msgspec.Raw(b'"auto"' if choice == NULL else choice),
        "tools": msgspec.Raw(b"[]" if tools == NULL else tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }
    return _encode(members)[1:-1]


def _text_config(body: ResponsesBody) -> dict[str, object]:
    wanted = body.text.format if body.text is not None else None
    if wanted is None or wanted.type != "json_schema":
        return {"format": {"type": wanted.type if wanted is not None else "text"}}
    return {
        "format": {
            "type": "json_schema",
            "name": wanted.name or "answer",
            "schema": wanted.schema,
            "strict": bool(wanted.strict),
            "description": wanted.description,
        }
    }


def usage_object(usage: Usage) -> bytes:
    """What no backend reported is 0: clients insist on numbers."""
    return _encode(
        {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
            "total_tokens": usage.total_tokens,
        }
    )


def error_object(code: str, message: str) -> bytes:
    return _encode({"code": code, "message": message})


def text_part(text: str, logprobs: bytes) -> bytes:
    told = b'{"type":"output_text","text":%b,"annotations":[],"logprobs":%b}'
    return told % (_encode(text), logprobs)


def message_item(item_id: str, status: bytes, parts: bytes) -> bytes:
    return b'{"id":%b,"type":"message","status":"%b","role":"assistant","content":[%b]}' % (
        _encode(item_id),
        status,
        parts,
    )


def reasoning_part(text: str) -> bytes:
    return b'{"type":"reasoning_text","text":%b}' % _encode(text)


def reasoning_item(item_id: str, status: bytes, parts: bytes) -> bytes:
    return b'{"id":%b,"type":"reasoning","summary":[],"content":[%b],"status":"%b"}' % (
        _encode(item_id),
        parts,
        status,
    )


def call_item(item_id: str, status: bytes, call_id: str, name: str, arguments: str) -> bytes:
    return b'{"id":%b,"type":"function_call","status":"%b","call_id":%b,"name":%b,"arguments":%b}' % (
        _encode(item_id),
        status,
        _encode(call_id),
        _encode(name),
        _encode(arguments),
    )


def joined(items: Sequence[bytes]) -> bytes:
    return b"[%b]" % b",".join(items)


class _TopToken(Struct):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None


class _Token(_TopToken):
    top_logprobs: list[_TopToken] = []


_tokens: Final = msgspec.json.Decoder(list[_Token])


def logprobs_of(told: bytes) -> Sequence[dict[str, object]]:
    """What a backend tells of tokens, as this API has it."""
    return [
        _token(one) | {"top_logprobs": [_token(other) for other in one.top_logprobs]}
        for one in (_tokens.decode(told) if told else ())
    ]


def _token(one: _TopToken) -> dict[str, object]:
    return {"token": one.token, "bytes": one.bytes or list(one.token.encode()), "logprob": one.logprob}
