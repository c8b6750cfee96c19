"""What a backend's replies say, in the order it is to be told. Pure; runs for every token.

Deltas tell content, reasoning and tool calls apart; of a backend that sends none, the text is all there is.
"""

from codecs import utf_8_decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from remuda.rpc import backend_pb2 as pb


class Said(NamedTuple):
    content: str = ""
    reasoning: str = ""
    calls: Sequence[pb.ToolCallDelta] = ()
    logprobs: bytes = b""


class Runes:
    """Text from pieces of UTF-8 that may end in the middle of a character. What is no text becomes U+FFFD."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes, *, last: bool = False) -> str:
        data = self._rest + piece if self._rest else piece
        text, used = utf_8_decode(data, "replace", last)
        self._rest = data[used:]
        return text


@dataclass(slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Hearing:
    """One answer. `wary`: a reply that is mere text may be the words of an error whose status is to follow,
    as llama.cpp sends them, so it is told only when something else has come."""

    def __init__(self, tokens_max: int, *, wary: bool = False) -> None:
        self.usage = Usage()
        self._tokens_max = tokens_max
        self._wary = wary
        self._suspect = b""
        self._runes = Runes()
        self._by_deltas = False
        self._called = False

    def hear(self, reply: pb.Reply) -> Said | None:
        """None: a sign of life, no more."""
        usage = self.usage
        usage.completion_tokens = reply.tokens or usage.completion_tokens
        usage.prompt_tokens = reply.prompt_tokens or usage.prompt_tokens
        message = reply.message
        deltas = reply.chat_deltas
        if self._wary:
            message, self._suspect = self._sorted(reply)
        content = reasoning = ""
        calls: Sequence[pb.ToolCallDelta] = ()
        if deltas:
            content, reasoning, calls = _joined(deltas)
            self._by_deltas = self._by_deltas or bool(content or reasoning or calls)
            self._called = self._called or bool(calls)
        if not self._by_deltas:
            content = self._runes.feed(message)
        logprobs = reply.logprobs
        if content or reasoning or calls or logprobs:
            return Said(content, reasoning, calls, logprobs)
        return None

    def end(self) -> Said | None:
        """What was held back until now."""
        content = "" if self._by_deltas else self._runes.feed(self._suspect, last=True)
        return Said(content) if content else None

    @property
    def finish_reason(self) -> str:
        if self._called:
            return "tool_calls"
        return "length" if 0 < self._tokens_max <= self.usage.completion_tokens else "stop"

    def _sorted(self, reply: pb.Reply) -> tuple[bytes, bytes]:
        """What may be told now, and what may not yet."""
        if reply.message and not reply.chat_deltas and not reply.tokens:
            return self._suspect, reply.message
        return self._suspect + reply.message, b""


def _joined(deltas: Sequence[pb.ChatDelta]) -> tuple[str, str, Sequence[pb.ToolCallDelta]]:
    if len(deltas) == 1:
        delta = deltas[0]
        return delta.content, delta.reasoning_content, delta.tool_calls
    return (
        "".join(delta.content for delta in deltas),
        "".join(delta.reasoning_content for delta in deltas),
        [call for delta in deltas for call in delta.tool_calls],
    )
