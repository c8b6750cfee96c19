"""From a backend's replies to the parts of an answer. Pure; runs for every token.

Deltas tell content, reasoning and tool calls apart; of a backend that sends none, the text is all there
is, and reasoning is what stands between tags at its beginning.
"""

from codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

import msgspec

from remuda.core.cut_calls import cut_calls, cut_message, whole_arguments
from remuda.inference.answers import Delta, FinishReason, ToolCallDelta, Usage
from remuda.models.tool_text import tool_calls_in
from remuda.rpc import backend_pb2 as pb
from remuda.rpc.metadata import CACHED_TOKENS, STOP_SEQUENCE
from remuda.upstreams.grpc.predict_request import ToolCallSearch

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_STOP_SEQUENCE: Final = STOP_SEQUENCE.encode()
_CACHED_TOKENS: Final = CACHED_TOKENS.encode()
_TOKENS_DIGITS_MAX: Final = 10


class _Place(Enum):
    BEFORE = auto()
    OPENED = auto()  # Behind the tag, where empty lines mean nothing.
    WITHIN = auto()
    CLOSED = auto()  # The same, behind the other tag.
    AFTER = auto()


class Thoughts:
    """For text that comes in pieces, of which any may end within a tag. Tags further on are mere text."""

    def __init__(self) -> None:
        self._rest = ""
        self._place = _Place.BEFORE

    def feed(self, piece: str, *, last: bool = False) -> tuple[str, str]:
        """What is content in all that was fed and not passed on yet, and what is thought."""
        if self._place is _Place.AFTER:
            return piece, ""
        self._rest += piece
        if self._place is _Place.BEFORE:
            self._begin(last)
        thought = self._thought(last)
        return self._content(), thought

    def _begin(self, last: bool) -> None:
        begun = self._rest.lstrip()
        if begun.startswith(_OPEN):
            self._rest, self._place = begun.removeprefix(_OPEN), _Place.OPENED
        elif last or not _OPEN.startswith(begun):
            self._place = _Place.AFTER

    def _thought(self, last: bool) -> str:
        if self._place is _Place.OPENED:
            self._skip_lines(_Place.WITHIN)
        if self._place is not _Place.WITHIN:
            return ""
        end = self._rest.find(_CLOSE)
        if end < 0:
            return self._taken(len(self._rest) - (0 if last else _length_of_beginning(self._rest)))
        thought = self._taken(end)
        self._rest, self._place = self._rest.removeprefix(_CLOSE), _Place.CLOSED
        return thought

    def _content(self) -> str:
        if self._place is _Place.CLOSED:
            self._skip_lines(_Place.AFTER)
        return self._taken(len(self._rest)) if self._place is _Place.AFTER else ""

    def _skip_lines(self, then: _Place) -> None:
        self._rest = self._rest.lstrip("\n")
        if self._rest:
            self._place = then

    def _taken(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


def _length_of_beginning(text: str) -> int:
    """How much of the closing tag has come, at the end of the text."""
    return next((n for n in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:n])), 0)


_CALLS_BEGIN: Final = ("{", "[")


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw]


class Runes:
    """Text from pieces of UTF-8 that may end in the middle of a character. What is no text becomes U+FFFD."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes, *, last: bool = False) -> str:
        data = self._rest + piece if self._rest else piece
        text, used = utf_8_decode(data, "replace", last)
        self._rest = data[used:]
        return text


_UNCOUNTED: Final = pb.Reply()


class ReplyDecoder:
    """One answer. `hold_suspect_text`: a reply that is mere text may be the words of an error whose status is
    to follow, as llama.cpp sends them, so it is passed on only when something else has come. `reading`: tool
    calls are looked for in the text, unless the backend has taken them out; it is held back until its end.
    `thoughts`: they are, too. `one_call`: any further call is left out, whatever the model has made of that.
    `context`: how many tokens prompt and answer can have together; 0: unknown."""

    def __init__(
        self,
        tokens_max: int = 0,
        *,
        hold_suspect_text: bool = False,
        logprobs: bool = False,
        reading: ToolCallSearch | None = None,
        thoughts: bool = False,
        one_call: bool = False,
        context: int = 0,
    ) -> None:
        self._one_call = one_call
        self._first_call: int | None = None
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._counted = _UNCOUNTED  # The last reply that counts tokens: durations stand beside.
        self._context = context
        self._tokens_max = tokens_max
        self._hold_suspect_text = hold_suspect_text
        self._logprobs = logprobs
        self._reading = reading
        self._suspect = b""
        self._runes = Runes()
        self._thoughts = Thoughts() if thoughts else None
        self._by_deltas = False
        self._called = False
        self._last_call = -1
        self._arguments: list[str] = []  # Of that call.
        self._held: list[str] = []
        self._may_be_call = False  # As far as its first letter tells.
        self._pieces = 0  # Replies with something in them: each is at least one token.

    def decode(self, reply: pb.Reply) -> Delta | None:
        """None: a sign of life, no more."""
        if tokens := reply.tokens:
            self._completion_tokens = tokens
            self._counted = reply
        self._prompt_tokens = reply.prompt_tokens or self._prompt_tokens
        message = self._trusted(reply) if self._hold_suspect_text else reply.message
        content = reasoning = ""
        calls: Sequence[ToolCallDelta] = ()
        if deltas := reply.chat_deltas:
            content, reasoning, calls = _joined(deltas)
            if calls and self._one_call:
                calls = self._of_first_call(calls)
            self._by_deltas = self._by_deltas or bool(content or reasoning or calls)
            if calls:
                self._note_calls(calls)
        if not self._by_deltas:
            content, reasoning = self._read(self._runes.feed(message))
        if self._reading is not None and content and (self._reading.bound or not self._by_deltas):
            content = self._hold(content)
        logprobs = _checked(reply.logprobs) if self._logprobs else b""
        self._pieces += bool(reply.message or reply.chat_deltas)
        if content or reasoning or calls or logprobs:
            return Delta(content, reasoning, calls, logprobs)
        return None

    def end(self) -> Delta:
        """What was held back until now."""
        rest = thought = ""
        if not self._by_deltas:
            rest, thought = self._read(self._runes.feed(self._suspect, last=True), last=True)
        reading = self._reading
        if reading is None:
            return Delta(rest, thought)
        text = "".join(self._held) + rest
        if self._called or (self._by_deltas and not reading.bound):
            return Delta(text if reading.bound else "", thought)
        content, found = self._calls_in(text, reading)
        calls = [ToolCallDelta(index, name=name, arguments=told) for index, (name, told) in enumerate(found)]
        if calls:
            self._note_calls(calls)
        return Delta(content, thought, calls)

    def _calls_in(self, text: str, reading: ToolCallSearch) -> tuple[str, Sequence[tuple[str, str]]]:
        """What was said beside calls, and of these the names and arguments."""
        parsed = tool_calls_in(text, reading.names, reading.no_action or "")
        calls: Sequence[tuple[str, str]] = [(call.name, call.arguments_json) for call in parsed.calls]
        content = parsed.content
        if reading.bound and not calls and content == text and self._cut_off():
            cut = cut_calls(text)
            if cut is not None:
                content = "".join(cut_message(one.arguments) for one in cut if one.name == reading.no_action)
                calls = [one for one in cut if one.name in reading.names]
        return content, calls[:1] if self._one_call else calls

    def _note_calls(self, calls: Sequence[ToolCallDelta]) -> None:
        self._called = True
        for call in calls:
            if call.index != self._last_call:
                self._last_call, self._arguments = call.index, []
            self._arguments.append(call.arguments)

    def _of_first_call(self, calls: Sequence[ToolCallDelta]) -> Sequence[ToolCallDelta]:
        if self._first_call is None:
            self._first_call = calls[0].index
        return [call for call in calls if call.index == self._first_call]

    @property
    def usage(self) -> Usage:
        counted = self._counted
        prompt_ms, completion_ms = counted.timing_prompt_processing, counted.timing_token_generation
        return Usage(
            self._prompt_tokens,
            self._completion_tokens,
            prompt_ms=prompt_ms or None,
            completion_ms=completion_ms or None,
        )

    @property
    def finish_reason(self) -> FinishReason:
        """Known after `end`."""
        if not self._called:
            return FinishReason.LENGTH if self._cut_off() else FinishReason.STOP
        # A call that is whole was ended by its model.
        broke_off = self._cut_off() and not whole_arguments("".join(self._arguments))
        return FinishReason.LENGTH if broke_off else FinishReason.TOOL_CALLS

    def _cut_off(self) -> bool:
        # Not every backend counts tokens.
        tokens = self._completion_tokens or self._pieces
        return 0 < self._tokens_max <= tokens or self._filled_context()

    def _filled_context(self) -> bool:
        """More tokens than the context has are reported by backends that forget the oldest and go on."""
        used = self._prompt_tokens + self._completion_tokens
        return bool(self._context and self._completion_tokens) and abs(used - self._context) <= 1

    def _hold(self, content: str) -> str:
        """Keep it back, unless it is plainly no call: not every backend keeps to a grammar, and those that
        send deltas have calls taken out. Returns what may be passed on now."""
        self._held.append(content)
        if self._may_be_call:
            return ""
        beginning = content.lstrip()[:1]
        self._may_be_call = beginning in _CALLS_BEGIN or (bool(beginning) and not self._by_deltas)
        if self._may_be_call or not beginning:
            return ""
        self._reading = None
        return "".join(self._held)

    def _read(self, text: str, *, last: bool = False) -> tuple[str, str]:
        return (text, "") if self._thoughts is None else self._thoughts.feed(text, last=last)

    def _trusted(self, reply: pb.Reply) -> bytes:
        """What may be passed on now; the rest is kept."""
        before, self._suspect = self._suspect, b""
        if reply.message and not reply.chat_deltas and not reply.tokens:
            self._suspect = reply.message
            return before
        return before + reply.message


def stop_sequence_in(trailers: Mapping[bytes, bytes]) -> str:
    """At which an answer ended, as our backends tell it; empty: at none, or that is not told."""
    told = trailers.get(_STOP_SEQUENCE)
    if told is None:
        return ""
    try:
        return msgspec.json.decode(told, type=str)
    except msgspec.DecodeError:
        return ""


def cached_tokens_in(trailers: Mapping[bytes, bytes]) -> int | None:
    """Of the prompt, as our backends tell it; None: that is not told."""
    told = trailers.get(_CACHED_TOKENS, b"")
    return int(told) if told.isdigit() and len(told) <= _TOKENS_DIGITS_MAX else None


def _checked(logprobs: bytes) -> bytes:
    """The entries of the tokens; empty for what could not stand in an answer."""
    try:
        content = msgspec.json.decode(logprobs, type=_Logprobs).content
    except msgspec.DecodeError:
        return b""
    return msgspec.json.encode(content)


def _joined(deltas: Sequence[pb.ChatDelta]) -> tuple[str, str, Sequence[ToolCallDelta]]:
    if len(deltas) == 1:
        delta = deltas[0]
        return delta.content, delta.reasoning_content, _tool_calls(delta.tool_calls)
    return (
        "".join(delta.content for delta in deltas),
        "".join(delta.reasoning_content for delta in deltas),
        [call for delta in deltas for call in _tool_calls(delta.tool_calls)],
    )


def _tool_calls(calls: Sequence[pb.ToolCallDelta]) -> Sequence[ToolCallDelta]:
    return [ToolCallDelta(call.index, call.id, call.name, call.arguments) for call in calls] if calls else ()
