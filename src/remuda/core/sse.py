"""Parses server-sent events from a stream of bytes, however it is cut into chunks. Pure."""

import re
from typing import Final, NamedTuple

from remuda.core.errors import PeerFailed

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
EVENT_BYTES_MAX: Final = 64 << 20  # One operation on many thousands of nodes.


class SseEvent(NamedTuple):
    name: str
    data: str
    id: str = ""  # The latest one sent, with this event or an earlier one.


class SseTooLarge(PeerFailed):
    """An event exceeds the parser's limit."""


class SseParser:
    """Takes chunks and returns the events that they complete. Comments and unknown fields are skipped."""

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._partial: list[bytes] = []  # The beginning of a line whose end is yet to come.
        self._after_return = False  # A line feed would belong to the line end before.
        self._first_line = True
        self._name = ""
        self._data: list[str] = []
        self._id = ""
        self._size = 0  # Bytes since the last event.

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """SseTooLarge when an event grows beyond the limit."""
        if self._after_return and chunk:
            chunk, self._after_return = chunk.removeprefix(b"\n"), False
        if chunk.endswith(b"\r"):
            self._after_return = True
        self._size += len(chunk)
        *lines, rest = _LINE_END.split(chunk)
        events = []
        for line in lines:
            if self._partial:
                line, self._partial = b"".join((*self._partial, line)), []
            event = self._take(line)
            if event is not None:
                events.append(event)
        if rest:
            self._partial.append(rest)
        if self._size > self._event_bytes_max:
            raise SseTooLarge(f"received an event of more than {self._event_bytes_max >> 20} MiB")
        return events

    def _take(self, line: bytes) -> SseEvent | None:
        if self._first_line:
            line, self._first_line = line.removeprefix(_BYTE_ORDER_MARK), False
        if not line:
            return self._complete()
        field, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
        return None

    def _complete(self) -> SseEvent | None:
        name, data = self._name or "message", self._data
        self._name, self._data, self._size = "", [], 0
        return SseEvent(name, "\n".join(data), self._id) if data else None
