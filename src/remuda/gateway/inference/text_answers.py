"""Text as clients get it, in whichever API: what a renderer of one writes, and all that an answer came to.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from remuda.inference.answers import Delta, FinishReason, Usage
from remuda.inference.model import InferenceCall


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """All that one answer came to."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[ToolCall] = ()
    logprobs: bytes = b""
    finish_reason: FinishReason = FinishReason.STOP


class TextRenderer(Protocol):
    """Writes the answers to one request: as events, the first of which opens its answer, or all at once."""

    @property
    def stream_type(self) -> bytes:
        """The content type of the events."""
        ...

    def piece(self, index: int, delta: Delta) -> bytes: ...

    def closing(self, index: int, reason: FinishReason, last: Delta) -> bytes: ...

    def ending(self, usage: Usage) -> bytes: ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes: ...


def choice_of(call: InferenceCall, index: int, deltas: Sequence[Delta], reason: FinishReason) -> Choice:
    """A whole answer from its parts."""
    choice = Choice(finish_reason=reason)
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        choice.text += delta.text
        choice.reasoning += delta.reasoning
        choice.logprobs = choice.logprobs or delta.logprobs
        for part in delta.tool_calls:
            known = calls.setdefault(part.index, ToolCall(part.id or made_up_id(call, index, part.index)))
            known.name = known.name or part.name
            known.arguments += part.arguments
    choice.calls = [calls[number] for number in sorted(calls)]
    return choice


def made_up_id(call: InferenceCall, index: int, number: int) -> str:
    """Of a tool call that its backend left without one."""
    return f"call_{call.request_id}_{index}_{number}"
