"""Answers as responses: their items, and the events in which a stream tells them. Pure; the event of a piece
of text is spliced from a template, as one is made per token.

One item of text is open at a time, thoughts or a message. Calls stay open to the end, since a backend may add
to any of them until then.
"""

import re
from dataclasses import dataclass, field
from typing import Final

import msgspec

from remuda.gateway.inference.api_format import EVENT_END, SSE, ended
from remuda.gateway.openai.errors import ErrorAnswer
from remuda.gateway.openai.rendering import OpenAiFormat
from remuda.gateway.responses import objects
from remuda.gateway.responses.objects import ResponseHead, ResponseResult
from remuda.inference.answers import Delta, FinishReason, ToolCallDelta, Usage

_DONE: Final = b"completed"
_OPEN: Final = b"in_progress"
_CUT: Final = b"incomplete"
_NUMBER: Final = re.compile(rb'"sequence_number":(\d+)}')
_encode: Final = msgspec.json.Encoder().encode
_error: Final = msgspec.json.Decoder(ErrorAnswer)


class ResponsesFormat(OpenAiFormat):
    """Implements gateway.client_response.ApiFormat."""

    def last_event(self, body: bytes, written: bytes) -> bytes:
        """An error: all else has events of its own. Clients count events."""
        numbers = _NUMBER.findall(written)
        number = int(numbers[-1]) + 1 if numbers else 0
        what = _error.decode(body).error
        told = {"type": "error", "code": what.code, "message": what.message, "param": what.param}
        return ended(written) + _event(b"error", _encode(told)[1:-1], number)


RESPONSES: Final = ResponsesFormat()


def _event(name: bytes, members: bytes, number: int) -> bytes:
    return b'event: %b\ndata: {%b,"sequence_number":%d}' % (name, members, number) + EVENT_END


@dataclass(slots=True)
class _OpenText:
    """`kind`: the event of its pieces without `.delta`."""

    index: int
    item_id: str
    thoughts: bool
    start: bytes = b""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, object]] = field(default_factory=list)


@dataclass(slots=True)
class _OpenCall:
    index: int
    item_id: str
    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)


class ResponseRenderer:
    """`streams`: the client reads events; else they are not written."""

    stream_type: Final = SSE

    def __init__(self, head: ResponseHead, *, streams: bool, store: bool) -> None:
        self._head = head
        self._streams = streams
        self._store = store
        self._number = 0
        self._begun = False
        self._items: list[bytes] = []  # Empty: not complete yet.
        self._text: _OpenText | None = None
        self._calls: dict[int, _OpenCall] = {}
        self._cut = False

    def piece(self, delta: Delta) -> bytes:
        text, reasoning, calls, logprobs = delta
        opened = self._text
        if text and opened is not None and not opened.thoughts and not (reasoning or calls or logprobs):
            opened.pieces.append(text)
            return self._text_event(opened.start, text, b"[]") if self._streams else b""
        parts = [self._opening()]
        if reasoning:
            parts += [self._open_text(thoughts=True), self._thought(reasoning)]
        if text or logprobs:
            parts += [self._open_text(thoughts=False), self._said(text, logprobs)]
        parts += [self._call_piece(call) for call in calls]
        return b"".join(parts)

    def closing(self, reason: FinishReason, last: Delta) -> bytes:
        """What is open is cut off if the answer is."""
        said = self.piece(last)
        self._cut = reason is FinishReason.LENGTH
        if not self._items:  # Clients look for a message.
            said += self._open_text(thoughts=False)
        return said + self._end_of_text(last=True) + b"".join(map(self._end_of_call, self._calls.values()))

    def outcome(self, usage: Usage, completed: int) -> ResponseResult:
        """All of the response, once it is closed."""
        return ResponseResult(
            "incomplete" if self._cut else "completed",
            objects.joined(self._items),
            objects.usage_object(usage),
            incomplete=b'{"reason":"max_output_tokens"}' if self._cut else objects.NULL,
            completed=0 if self._cut else completed,
        )

    def ending(self, outcome: ResponseResult, *, store: bool) -> bytes:
        """`store`: it was kept."""
        whole = objects.response_object(self._head, outcome, store=store)
        return self._event(b"response." + outcome.status.encode(), b'"response":' + whole)

    def _opening(self) -> bytes:
        if self._begun or not self._streams:
            return b""
        self._begun = True
        empty = b'"response":' + objects.response_object(
            self._head, ResponseResult("in_progress"), store=self._store
        )
        return self._event(b"response.created", empty) + self._event(b"response.in_progress", empty)

    def _event(self, name: bytes, members: bytes) -> bytes:
        if not self._streams:
            return b""
        self._number += 1
        return _event(name, b'"type":"%b",%b' % (name, members), self._number - 1)

    def _text_event(self, start: bytes, text: str, logprobs: bytes) -> bytes:
        self._number += 1
        return b'%b%b,"logprobs":%b,"sequence_number":%d}\n\n' % (
            start,
            _encode(text),
            logprobs,
            self._number - 1,
        )

    def _open_text(self, *, thoughts: bool) -> bytes:
        """The item that such text belongs to, after the end of the one before."""
        if self._text is not None and self._text.thoughts == thoughts:
            return b""
        before = self._end_of_text(last=False)
        index = len(self._items)
        item_id = self._head.item_id("rs" if thoughts else "msg", index)
        self._items.append(b"")
        opened = self._text = _OpenText(index, item_id, thoughts)
        if not self._streams:
            return before
        place = b'"item_id":%b,"output_index":%d,"content_index":0' % (_encode(item_id), index)
        name = b"response.reasoning_text.delta" if thoughts else b"response.output_text.delta"
        opened.start = b'event: %b\ndata: {"type":"%b",%b,"delta":' % (name, name, place)
        item = objects.reasoning_item if thoughts else objects.message_item
        part = objects.reasoning_part("") if thoughts else objects.text_part("", b"[]")
        return (
            before
            + self._item_event(b"added", index, item(item_id, _OPEN, b""))
            + self._event(b"response.content_part.added", place + b',"part":' + part)
        )

    def _thought(self, text: str) -> bytes:
        assert self._text is not None
        self._text.pieces.append(text)
        if not self._streams:
            return b""
        self._number += 1
        written = b'%b%b,"sequence_number":%d}' % (self._text.start, _encode(text), self._number - 1)
        return written + EVENT_END

    def _said(self, text: str, logprobs: bytes) -> bytes:
        assert self._text is not None
        told = objects.logprobs_of(logprobs)
        self._text.logprobs += told
        self._text.pieces.append(text)
        return self._text_event(self._text.start, text, _encode(told)) if self._streams else b""

    def _end_of_text(self, *, last: bool) -> bytes:
        opened, self._text = self._text, None
        if opened is None:
            return b""
        text, told = "".join(opened.pieces), _encode(opened.logprobs)
        status = _CUT if last and self._cut and not self._calls else _DONE
        if opened.thoughts:
            name, extra, part = b"response.reasoning_text.done", b"", objects.reasoning_part(text)
            whole = objects.reasoning_item(opened.item_id, status, part)
        else:
            name, extra = b"response.output_text.done", b',"logprobs":' + told
            part = objects.text_part(text, told)
            whole = objects.message_item(opened.item_id, status, part)
        self._items[opened.index] = whole
        if not self._streams:
            return b""
        place = b'"item_id":%b,"output_index":%d,"content_index":0' % (_encode(opened.item_id), opened.index)
        return (
            self._event(name, b'%b,"text":%b%b' % (place, _encode(text), extra))
            + self._event(b"response.content_part.done", place + b',"part":' + part)
            + self._item_event(b"done", opened.index, whole)
        )

    def _item_event(self, what: bytes, index: int, item: bytes) -> bytes:
        return self._event(b"response.output_item." + what, b'"output_index":%d,"item":%b' % (index, item))

    def _call_piece(self, delta: ToolCallDelta) -> bytes:
        call, start = self._calls.get(delta.index), b""
        if call is None:
            start = self._end_of_text(last=False)
            index = len(self._items)
            call_id = delta.id or f"call_{self._head.id}_{delta.index}"
            call = _OpenCall(index, self._head.item_id("fc", index), call_id, delta.name)
            self._calls[delta.index] = call
            self._items.append(b"")
            empty = objects.call_item(call.item_id, _OPEN, call.call_id, call.name, "")
            start += self._item_event(b"added", index, empty)
        call.name = call.name or delta.name
        if not delta.arguments:
            return start
        call.arguments.append(delta.arguments)
        place = b'"item_id":%b,"output_index":%d' % (_encode(call.item_id), call.index)
        members = place + b',"delta":' + _encode(delta.arguments)
        return start + self._event(b"response.function_call_arguments.delta", members)

    def _end_of_call(self, call: _OpenCall) -> bytes:
        arguments = "".join(call.arguments)
        status = _CUT if self._cut and call.index == len(self._items) - 1 else _DONE
        whole = objects.call_item(call.item_id, status, call.call_id, call.name, arguments)
        self._items[call.index] = whole
        members = b'"item_id":%b,"output_index":%d,"name":%b,"arguments":%b' % (
            _encode(call.item_id),
            call.index,
            _encode(call.name),
            _encode(arguments),
        )
        return self._event(b"response.function_call_arguments.done", members) + self._item_event(
            b"done", call.index, whole
        )
