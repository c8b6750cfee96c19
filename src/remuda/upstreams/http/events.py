"""A stream of server-sent events on its way through: passed on by whole lines, counted, its end checked for.

A line that is broken off is never passed on, so that the event which says so can follow.
"""

import re
from typing import Final

from remuda.upstreams.http.model_renaming import Renamer

LINE_HELD_BYTES_MAX: Final = 64 << 10  # Of a line whose end has not come; a longer one passes in parts.
_TAIL_BYTES: Final = 4 << 10  # Holds the last events.
_CHUNK: Final = b'data: {"'  # Within a JSON string the quote would be escaped.
_END: Final = re.compile(rb"(?:^|\n)data: ?\[DONE\]\s*$")
_USAGE: Final = b'"usage"'
_PROMPT: Final = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,15})')
_COMPLETION: Final = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,15})')


class Events:
    """`chunks` is how many pieces of an answer have passed: about one for each token."""

    def __init__(self, renamer: Renamer) -> None:
        self._renamer = renamer
        self._held = b""
        self.tail = b""  # What passed last.
        self.chunks = 0

    def feed(self, piece: bytes) -> bytes:
        """What can be passed on now; it may be nothing."""
        if self._held:
            piece, self._held = self._held + piece, b""
        if not piece.endswith(b"\n"):
            cut = piece.rfind(b"\n") + 1
            if len(piece) - cut <= LINE_HELD_BYTES_MAX:
                piece, self._held = piece[:cut], piece[cut:]
        return self._pass(piece)

    def rest(self) -> bytes:
        """What was held back, when the stream has ended."""
        rest, self._held = self._pass(self._held), b""
        return rest + self._renamer.rest()

    def _pass(self, piece: bytes) -> bytes:
        self.chunks += piece.count(_CHUNK)
        self.tail = piece if len(piece) >= _TAIL_BYTES else self.tail[-_TAIL_BYTES:] + piece
        return self._renamer.feed(piece)

    @property
    def ended(self) -> bool:
        """It has come to its own end."""
        return _END.search(self.tail + self._held) is not None

    def breaking_off(self) -> bytes:
        """What has to be said before anything else can be, when the stream goes no further."""
        if not self.tail or self.tail.endswith((b"\n\n", b"\n\r\n")):
            return b""
        return b"\n" if self.tail.endswith(b"\n") else b"\n\n"


def usage_in(text: bytes) -> tuple[int, int] | None:
    """Tokens of prompt and completion, as the last `usage` in an answer tells them."""
    at = text.rfind(_USAGE)
    prompt = _PROMPT.search(text, at) if at >= 0 else None
    if prompt is None:
        return None
    completion = _COMPLETION.search(text, at)
    return int(prompt[1]), int(completion[1]) if completion else 0
