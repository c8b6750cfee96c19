"""Ollama's answers as bytes: chats and completions, whole or as lines of JSON, and embeddings. Pure; lines of
a stream are spliced from templates: one is made per token.

Fields that a backend gives no figures for are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from remuda.core.slices import Budget, Sliced
from remuda.gateway.inference.floats import short_floats
from remuda.gateway.inference.text_answers import Choice, choice_of
from remuda.inference.answers import Delta, FinishReason, Usage, Vector
from remuda.inference.model import InferenceCall

NDJSON: Final = b"application/x-ndjson"
_NS_OF_S: Final = 1_000_000_000
_NS_OF_MS: Final = 1_000_000
_SECONDS_KNOWN_MAX: Final = 16
_encode: Final = msgspec.json.Encoder().encode


_LINE_ENDS: Final = {  # Not for JSON, but for some clients.
    "\x85".encode(): rb"\u0085",
    "\u2028".encode(): rb"\u2028",
    "\u2029".encode(): rb"\u2029",
}


def on_one_line(json: bytes) -> bytes:
    """The same JSON without anything at which the official client, or another, ends a line."""
    if json.isascii():
        return json
    for end, escaped in _LINE_ENDS.items():
        json = json.replace(end, escaped)
    return json


class Shape(StrEnum):
    """What an answer looks like."""

    CHAT = "chat"
    GENERATE = "generate"
    EMBED = "embed"
    EMBEDDINGS = "embeddings"


class Spent(NamedTuple):
    """Seconds since a request came, and those of them in which it waited for a replica or its load."""

    total_s: float
    waited_s: float


SpentUntilNow = Callable[[], Spent]


def instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


@lru_cache(_SECONDS_KNOWN_MAX)
def _instant_of(seconds: int) -> bytes:
    """Many requests come within one second."""
    return instant(datetime.fromtimestamp(seconds, UTC)).encode()


class OllamaTexts:
    """Implements gateway.inference.text_answers.TextRenderer, for the one answer that a request has. A call
    of a tool is sent when it is complete."""

    stream_type: Final = NDJSON

    def __init__(self, call: InferenceCall, model: str, shape: Shape, spent: SpentUntilNow) -> None:
        self._call = call
        self._chat = shape is Shape.CHAT
        self._spent = spent
        head = b'{"model":%b,"created_at":"%b"' % (_encode(model), _instant_of(call.created))
        self._start = head + (b',"message":{"role":"assistant","content":' if self._chat else b',"response":')
        self._end = b"}" if self._chat else b""
        self._unfinished = self._end + b',"done":false}\n'
        self._calls: list[Delta] = []
        self._done_reason = FinishReason.STOP

    def piece(self, index: int, delta: Delta) -> bytes:
        text, reasoning, calls, logprobs = delta
        if not reasoning and not calls and not logprobs:
            return self._start + on_one_line(_encode(text)) + self._unfinished
        if calls:
            self._calls.append(Delta(tool_calls=calls))
        if not text and not reasoning and not logprobs:
            return b""
        return self._said(text, reasoning, logprobs=logprobs) + b',"done":false}\n'

    def closing(self, index: int, reason: FinishReason, last: Delta) -> bytes:
        self._done_reason = reason
        written = self.piece(index, last) if any(last) else b""
        failed, made = _spoken(choice_of(self._call, index, self._calls, reason))
        if not failed and not made:
            return written
        return written + self._said(failed, "", made) + b',"done":false}\n'

    def ending(self, usage: Usage) -> bytes:
        return self._said("", "") + self._finished(usage) + b"\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        choice = choices[0]
        self._done_reason = choice.finish_reason
        failed, calls = _spoken(choice)
        said = self._said(choice.text + failed, choice.reasoning, calls, choice.logprobs)
        return said + self._finished(usage)

    def _said(self, text: str, reasoning: str, calls: Sequence[Raw] = (), logprobs: bytes = b"") -> bytes:
        thinking = b',"thinking":' + _encode(reasoning) if reasoning else b""
        called = b',"tool_calls":' + _encode(calls) if calls else b""
        likely = b',"logprobs":' + logprobs if logprobs else b""
        return on_one_line(b"".join((self._start, _encode(text), thinking, called, self._end, likely)))

    def _finished(self, usage: Usage) -> bytes:
        reason = b"length" if self._done_reason is FinishReason.LENGTH else b"stop"
        return b',"done":true,"done_reason":"%b"%b}' % (reason, _figures(self._spent(), usage))


def _spoken(choice: Choice) -> tuple[str, list[Raw]]:
    """Calls with objects for arguments. What a model wrote that is none is shown as it is: a text. One that
    broke off at the answer's limit has no place in this API."""
    failed, made = list[str](), list[Raw]()
    for number, call in enumerate(choice.calls):
        arguments = _object(call.arguments)
        if choice.finish_reason is FinishReason.LENGTH and (arguments is None or not call.arguments):
            continue
        if arguments is None:
            failed.append(_encode({"name": call.name, "arguments": call.arguments}).decode())
            continue
        function = {"index": number, "name": call.name, "arguments": arguments}
        made.append(Raw(_encode({"id": call.id, "function": function})))
    return "\n".join(failed), made


def _object(text: str) -> Raw | None:
    try:
        found = msgspec.json.decode(text.encode() or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    return Raw(text.encode() or b"{}") if isinstance(found, dict) else None


def _figures(spent: Spent, usage: Usage) -> bytes:
    """Members of a last line: nanoseconds and tokens."""
    known: dict[str, int] = {
        "total_duration": round(spent.total_s * _NS_OF_S),
        "load_duration": round(spent.waited_s * _NS_OF_S),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": round((usage.prompt_ms or 0.0) * _NS_OF_MS),
        "eval_count": usage.completion_tokens,
        "eval_duration": round((usage.completion_ms or 0.0) * _NS_OF_MS),
    }
    return b"".join(b',"%b":%d' % (name.encode(), value) for name, value in known.items() if value)


def model_only(shape: Shape, model: str, at: datetime, done_reason: str) -> bytes:
    """The answer to a request that asked for nothing but the model."""
    head: dict[str, object] = {"model": model, "created_at": instant(at)}
    match shape:
        case Shape.EMBED:
            return _encode({"model": model, "embeddings": []})
        case Shape.EMBEDDINGS:
            return _encode({"embedding": []})
        case Shape.CHAT:
            said: Mapping[str, object] = {"message": {"role": "assistant", "content": ""}}
        case Shape.GENERATE:
            said = {"response": ""}
    return _encode({**head, **said, "done": True, "done_reason": done_reason})


_STEPS_MAX: Final = 1 << 40  # Never reached: the budget only cuts the work into slices.
_FLOATS_PER_STEP: Final = 2


def embedded(model: str, vectors: Sequence[Vector], usage: Usage, spent: Spent) -> Sliced[bytes]:
    """The answer of /api/embed."""
    written, budget = list[bytes](), Budget("the list of embeddings", _STEPS_MAX)
    for vector in vectors:
        if budget.spend(len(vector) // _FLOATS_PER_STEP):
            yield
        written.append(_encode(short_floats(vector)))
    figures = _figures(spent, Usage(usage.prompt_tokens))
    return b'{"model":%b,"embeddings":[%b]%b}' % (_encode(model), b",".join(written), figures)


def one_embedding(vectors: Sequence[Vector]) -> bytes:
    """The answer of /api/embeddings."""
    return _encode({"embedding": short_floats(vectors[0]) if vectors else []})
