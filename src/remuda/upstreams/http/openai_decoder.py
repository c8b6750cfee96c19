"""OpenAI's answers, as HTTP servers write them, decoded into typed ones. Pure.

For clients of other APIs. Servers differ in what they leave out, write as null or add, so only what cannot be
understood at all is a failure.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from remuda.core.sse import SseParser, SseTooLarge
from remuda.inference.answers import NOTHING, Delta, FinishReason, Score, ToolCallDelta, Usage, Vector
from remuda.inference.failures import Fault, UpstreamFailed, clients_fault
from remuda.upstreams.http.refusals import in_words

EVENT_BYTES_MAX: Final = 8 << 20
_DONE: Final = "[DONE]"
_ABSENT: Final = (b"", b"null")
_NONE: Final = msgspec.Raw(b"")
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}  # Whatever else a server says, the answer came to its end.


class AnswerPart(NamedTuple):
    """What an answer, given by its index, says next, and why it ends, if it does. `stop_sequence`: at which
    of those asked for, where the server says so."""

    answer: int
    delta: Delta
    finished: FinishReason | None
    stop_sequence: str = ""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    """A whole one, or a part of a streamed one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    """In a stream it has a `delta`, in a whole answer a `message`, and of a completion a `text`."""

    index: int = 0
    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None
    logprobs: msgspec.Raw = _NONE
    finish_reason: str | None = None
    stop_reason: object = None  # vLLM's: the stop sequence, or the number of a token.
    matched_stop: object = None  # SGLang's.


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: msgspec.Raw = _NONE
    completion_tokens_details: msgspec.Raw = _NONE


class _Timings(msgspec.Struct):
    """llama.cpp's."""

    prompt_ms: float | None = None
    predicted_ms: float | None = None
    cache_n: int | None = None


class _TextAnswer(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = _NONE
    timings: msgspec.Raw = _NONE


class _Embedding(msgspec.Struct):
    embedding: msgspec.Raw
    index: int | None = None


class _EmbeddingList(msgspec.Struct):
    data: list[_Embedding]
    usage: _Usage | None = None


class _Ranked(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranking(msgspec.Struct):
    results: list[_Ranked]
    usage: _Usage | None = None


class _ChatLogprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None


class _CompletionLogprobs(msgspec.Struct):
    """In columns."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


_text_answer: Final = msgspec.json.Decoder(_TextAnswer)
_embedding_list: Final = msgspec.json.Decoder(_EmbeddingList)
_ranking: Final = msgspec.json.Decoder(_Ranking)
_vector: Final = msgspec.json.Decoder(list[float])
_details: Final = msgspec.json.Decoder(dict[str, object])
_timings: Final = msgspec.json.Decoder(_Timings)
_logprobs: Final = msgspec.json.Decoder(_ChatLogprobs)
_columns: Final = msgspec.json.Decoder(_CompletionLogprobs)
T = TypeVar("T")


class StreamDecoder:
    """The events of one streamed answer to a chat or completion."""

    def __init__(self) -> None:
        self._parser = SseParser(EVENT_BYTES_MAX)
        self.ended = False  # It has come to its own end.
        self._usage: _Usage | None = None  # The latest sent, as is the other.
        self._timings = _NONE

    def feed(self, data: bytes) -> Sequence[AnswerPart]:
        """The parts that these bytes complete. UpstreamFailed for what is none, and for an error in the
        stream."""
        try:
            events = self._parser.feed(data)
        except SseTooLarge as error:
            raise UpstreamFailed(Fault.BROKE, f"the backend's answer: {error.message}") from error
        parts: list[AnswerPart] = []
        for event in events:
            self.ended = self.ended or event.data == _DONE
            if self.ended:
                break
            answer = _text_answer_in(event.data.encode())
            self._usage = answer.usage or self._usage
            self._timings = answer.timings or self._timings
            parts += _parts_of(answer)
        return parts

    @property
    def usage(self) -> Usage | None:
        return _usage_of(self._usage, self._timings)


def whole_text(body: bytes) -> tuple[Sequence[AnswerPart], Usage | None]:
    """All answers to a chat or completion that was not streamed."""
    answer = _text_answer_in(body)
    return _parts_of(answer), _usage_of(answer.usage, answer.timings)


def embeddings_in(body: bytes) -> tuple[Sequence[msgspec.Raw], Usage]:
    """One for each input, in order; still to be decoded by `vector_of`, since all together take long."""
    found = _decoded(_embedding_list, body)
    in_order = sorted(enumerate(found.data), key=lambda one: one[0] if one[1].index is None else one[1].index)
    return [entry.embedding for _, entry in in_order], _usage_of(found.usage) or Usage()


def vector_of(embedding: msgspec.Raw) -> Vector:
    return _decoded(_vector, embedding)


def scores_in(body: bytes) -> tuple[Sequence[Score], Usage]:
    found = _decoded(_ranking, body)
    scores = [Score(ranked.index, ranked.relevance_score) for ranked in found.results]
    return scores, _usage_of(found.usage) or Usage()


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UpstreamFailed(Fault.BROKE, f"the backend's answer is not OpenAI's JSON: {error}") from None


def _text_answer_in(body: bytes) -> _TextAnswer:
    answer = _decoded(_text_answer, body)
    if bytes(answer.error) not in _ABSENT:
        words = in_words(body)
        failed = clients_fault(words, "the model", f"the backend refuses this: {words}")
        raise failed or UpstreamFailed(Fault.FAILED, f"the backend failed: {words}")
    return answer


def _parts_of(answer: _TextAnswer) -> list[AnswerPart]:
    return [_part_of(choice) for choice in answer.choices or ()]


def _part_of(choice: _Choice) -> AnswerPart:
    message = choice.delta or choice.message
    text, reasoning, calls = choice.text or "", "", list[ToolCallDelta]()
    if message is not None:
        text = text or message.content or ""
        reasoning = message.reasoning_content or message.reasoning or ""
        calls = [_tool_call(position, call) for position, call in enumerate(message.tool_calls or ())]
    logprobs = b"" if bytes(choice.logprobs) in _ABSENT else _logprobs_in(choice.logprobs)
    has_content = text or reasoning or calls or logprobs
    finished = choice.finish_reason and _FINISH_REASONS.get(choice.finish_reason, FinishReason.STOP)
    delta = Delta(text, reasoning, calls, logprobs) if has_content else NOTHING
    told = choice.stop_reason or choice.matched_stop
    return AnswerPart(choice.index, delta, finished or None, told if isinstance(told, str) else "")


def _tool_call(position: int, call: _ToolCall) -> ToolCallDelta:
    function = call.function or _Function()
    index = position if call.index is None else call.index
    return ToolCallDelta(index, call.id or "", function.name or "", function.arguments or "")


def _usage_of(usage: _Usage | None, timings: msgspec.Raw = _NONE) -> Usage | None:
    if usage is None:
        return None
    prompt = usage.prompt_tokens or 0
    completion = usage.completion_tokens
    if completion is None:
        completion = max((usage.total_tokens or 0) - prompt, 0)
    cached = _detail(usage.prompt_tokens_details, "cached_tokens")
    reasoning = _detail(usage.completion_tokens_details, "reasoning_tokens")
    if bytes(timings) in _ABSENT:
        return Usage(prompt, completion, cached, reasoning)
    took = _timings_in(timings)
    cached = took.cache_n if cached is None else cached
    return Usage(prompt, completion, cached, reasoning, took.prompt_ms, took.predicted_ms)


def _detail(details: msgspec.Raw, name: str) -> int | None:
    """None: missing, or not a number."""
    if bytes(details) in _ABSENT:
        return None
    try:
        count = _details.decode(details).get(name)
    except (msgspec.DecodeError, RecursionError):
        return None
    return count if type(count) is int and count >= 0 else None


def _timings_in(text: msgspec.Raw) -> _Timings:
    try:
        return _timings.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _Timings()


def _logprobs_in(logprobs: msgspec.Raw) -> bytes:
    """As `Delta` has them; empty for those that could not be read."""
    try:
        content = _logprobs.decode(logprobs).content
        if content is not None:
            return msgspec.json.encode(content)
        return _rows(_columns.decode(logprobs))
    except msgspec.DecodeError:
        return b""


def _rows(columns: _CompletionLogprobs) -> bytes:
    others = columns.top_logprobs or [None] * len(columns.tokens)
    return msgspec.json.encode(
        [
            {
                "token": token,
                "logprob": logprob or 0.0,
                "top_logprobs": [{"token": other, "logprob": p} for other, p in (top or {}).items()],
            }
            for token, logprob, top in zip(columns.tokens, columns.token_logprobs, others, strict=False)
        ]
    )
