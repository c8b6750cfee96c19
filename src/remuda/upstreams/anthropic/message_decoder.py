"""Anthropic's answers, whole or as a stream of events, decoded into typed ones. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from remuda.core.sse import SseEvent, SseParser, SseTooLarge
from remuda.inference.answers import Delta, FinishReason, ToolCallDelta, Usage
from remuda.inference.failures import Fault, UpstreamFailed, clients_fault

EVENT_BYTES_MAX: Final = 8 << 20
_REASONS: Final[Mapping[str, FinishReason]] = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
}  # Whatever else it says, the answer came to its end.


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Message(msgspec.Struct):
    content: list[_Block] = msgspec.field(default_factory=list)
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_event: Final = msgspec.json.Decoder(_Event)
_message: Final = msgspec.json.Decoder(_Message)


class MessageDecoder:
    """One answer. `finished` is set at its end."""

    def __init__(self) -> None:
        self._parser = SseParser(EVENT_BYTES_MAX)
        self._calls: dict[int, int] = {}  # By block, which call it is.
        self._usage = _Usage()
        self.finished: FinishReason | None = None
        self.stop_sequence = ""
        self.ended = False

    @property
    def usage(self) -> Usage:
        told = self._usage
        cached = told.cache_read_input_tokens
        prompt = (told.input_tokens or 0) + (told.cache_creation_input_tokens or 0) + (cached or 0)
        return Usage(prompt, told.output_tokens or 0, cached)

    @property
    def kept_tokens(self) -> int:
        """Of the prompt, which the server keeps for later ones."""
        return self._usage.cache_creation_input_tokens or 0

    def feed(self, data: bytes) -> list[Delta]:
        """What the events that these bytes complete say. UpstreamFailed for an event that says so, and for
        what is not understood."""
        try:
            return [delta for event in self._parser.feed(data) if (delta := self._take(event)) is not None]
        except SseTooLarge as error:
            raise UpstreamFailed(Fault.BROKE, f"the server's answer: {error.message}") from None

    def whole(self, body: bytes) -> Sequence[Delta]:
        """An answer that is not streamed."""
        try:
            message = _message.decode(body)
        except (msgspec.DecodeError, RecursionError):
            raise _not_understood() from None
        deltas = [self._said(number, block) for number, block in enumerate(message.content)]
        self._note(message.usage)
        self._finish(message.stop_reason, message.stop_sequence)
        self.ended = True
        return deltas

    def _take(self, event: SseEvent) -> Delta | None:
        try:
            told = _event.decode(event.data)
        except (msgspec.DecodeError, RecursionError):
            raise _not_understood() from None
        match told.type:
            case "message_start" if told.message is not None:
                self._note(told.message.usage)
            case "content_block_start" if told.content_block is not None:
                return self._opened(told.index, told.content_block)
            case "content_block_delta" if told.delta is not None:
                return self._continued(told.index, told.delta)
            case "message_delta" if told.delta is not None:
                self._note(told.usage)
                self._finish(told.delta.stop_reason, told.delta.stop_sequence)
            case "message_stop":
                self.ended = True
            case "error" if told.error is not None:
                raise failure_told(told.error.message or told.error.type)
        return None

    def _opened(self, index: int, block: _Block) -> Delta | None:
        if block.type == "tool_use":
            number = self._calls[index] = len(self._calls)
            return Delta(tool_calls=(ToolCallDelta(number, block.id, block.name),))
        if block.text or block.thinking:
            return Delta(block.text, block.thinking)
        return None

    def _continued(self, index: int, delta: _Delta) -> Delta | None:
        match delta.type:
            case "text_delta":
                return Delta(delta.text)
            case "thinking_delta":
                return Delta(reasoning=delta.thinking)
            case "input_json_delta" if index in self._calls and delta.partial_json:
                return Delta(tool_calls=(ToolCallDelta(self._calls[index], arguments=delta.partial_json),))
        return None  # Signatures, and what this API adds one day.

    def _said(self, index: int, block: _Block) -> Delta:
        if block.type != "tool_use":
            return Delta(block.text, block.thinking)
        number = self._calls[index] = len(self._calls)
        arguments = bytes(block.input).decode()
        return Delta(tool_calls=(ToolCallDelta(number, block.id, block.name, arguments),))

    def _note(self, usage: _Usage | None) -> None:
        """What is reported later counts."""
        for name in () if usage is None else usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(self._usage, name, value)

    def _finish(self, reason: str | None, sequence: str | None) -> None:
        if reason is not None:
            self.finished = _REASONS.get(reason, FinishReason.STOP)
            self.stop_sequence = sequence or ""


def failure_told(words: str) -> UpstreamFailed:
    """What an error in the middle of a stream means."""
    own = clients_fault(words, "the model", f"the server refuses this: {words}")
    return own or UpstreamFailed(Fault.FAILED, f"the server failed: {words}")


def _not_understood() -> UpstreamFailed:
    return UpstreamFailed(Fault.BROKE, "the server's answer is none of Anthropic's API")
