"""Server-sent events out of a stream of bytes, however it is cut into chunks. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from remuda.core.errors import PeerFailed

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_MARK: Final = b"\xef\xbb\xbf"
_EVENT_BYTES_MAX: Final = 64 << 20  # One operation on many thousands of nodes.


@dataclass(frozen=True, slots=True)
class SseEvent:
    name: str
    data: str
    id: str = ""  # The latest one that was told, by this event or one before it.


class SseParser:
    """Takes chunks and gives the events that they complete. What is no event, such as a comment, it skips."""

    def __init__(self) -> None:
        self._piece: list[bytes] = []  # The beginning of a line whose end is yet to come.
        self._after_return = False  # A line feed would belong to the line end before.
        self._first_line = True
        self._name = ""
        self._data: list[str] = []
        self._id = ""
        self._size = 0  # Bytes since the last event.

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """PeerFailed when an event grows beyond all bounds."""
        if self._after_return and chunk:
            chunk, self._after_return = chunk.removeprefix(b"\n"), False
        if chunk.endswith(b"\r"):
            self._after_return = True
        self._size += len(chunk)
        *lines, rest = _LINE_END.split(chunk)
        events = []
        for line in lines:
            whole, self._piece = b"".join((*self._piece, line)), []
            event = self._take(whole)
            events += [event] if event is not None else []
        if rest:
            self._piece.append(rest)
        if self._size > _EVENT_BYTES_MAX:
            raise PeerFailed(f"the frontend sent an event of more than {_EVENT_BYTES_MAX >> 20} MiB")
        return events

    def _take(self, raw: bytes) -> SseEvent | None:
        if self._first_line:
            raw, self._first_line = raw.removeprefix(_MARK), False
        if not raw:
            return self._complete()
        field, _, value = raw.decode(errors="replace").partition(":")
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
