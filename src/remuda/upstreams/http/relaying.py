"""What a relay does to requests and answers on their way through, however they are cut into pieces: another
name is put into the `model` of a JSON text, and a stream of server-sent events is passed on by whole lines,
counted, its end checked for.

Only a member of the outermost object counts: what users, models and documents say stays as it is. A line
that is broken off is never passed on, so that the event which says so can follow.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

_MEMBER: Final = re.compile(rb'"model"(\s*:\s*)("(?:[^"\\]++|\\.)*+")')
_KEY: Final = b'"model"'
_MARK: Final = re.compile(rb'["{}\[\]\n]')
_IN_STRING: Final = re.compile(rb'(?:[^"\\\n]++|\\[^\n])*+')
_HELD_BYTES_MAX: Final = 2048  # The longest member that is found when it comes in pieces.
_QUOTE, _BACKSLASH, _NEWLINE = b'"\\\n'
_OPENING: Final = b"{["
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def with_members(body: bytes, changed: Mapping[str, object]) -> bytes:
    """The same request with these members, such as a model of another name; everything else stays as it was
    written."""
    return msgspec.json.encode({**members_of(body), **changed})


def members_of(body: bytes) -> dict[str, msgspec.Raw]:
    """Of a JSON object, each as it was written; of several of one name the last."""
    return _members.decode(body)


class Renamer:
    """`name` is JSON, quotes included. With `by_line`, each line is a text of its own, as in a stream of
    events (JSON strings hold no newlines). An answer that begins under the right name goes on under it."""

    def __init__(self, name: bytes, *, by_line: bool = False) -> None:
        self._name = name
        self._by_line = by_line
        self._depth = 0
        self._in_string = False
        self._found = False  # In this text.
        self._right = False  # It has the name already.
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be passed on now."""
        data = self._held + piece if self._held else piece
        if self._right or self._has_it_first(data):
            self._right, self._held = True, b""
            return data
        return self._renamed(data)

    def _has_it_first(self, data: bytes) -> bool:
        """The right name comes before anything that is nested, as it usually does. What looks like a member
        is one: within a string the quotes would be escaped."""
        if self._depth or self._in_string or self._found:
            return False
        member = _MEMBER.search(data)
        return (
            member is not None
            and member[2] == self._name
            and data.count(b"{", 0, member.start()) == 1
            and data.find(b"[", 0, member.start()) < 0
        )

    def _renamed(self, data: bytes) -> bytes:
        passed: list[bytes] = []
        copied, at, end = 0, 0, len(data)
        while at < end:
            if self._found:
                at = self._to_next_text(data, at)
            elif self._in_string:
                at = self._through_string(data, at)
                if at < end and self._in_string:
                    break  # What it escapes is in the next piece.
            elif (mark := _MARK.search(data, at)) is None:
                at = end
            else:
                at = mark.start()
                if data[at] == _QUOTE and self._depth == 1:
                    if member := _MEMBER.match(data, at):
                        passed += (data[copied:at], _KEY, member[1], self._name)
                        copied = at = member.end()
                        self._found, self._right = True, member[2] == self._name
                        continue
                    if _may_go_on(data, at):
                        break
                self._past(data[at])
                at += 1
        self._held = data[at:]
        if not passed and not self._held:
            return data
        passed.append(data[copied:at])
        return b"".join(passed)

    def rest(self) -> bytes:
        """What was held back, now that nothing more comes."""
        held, self._held = self._held, b""
        return held

    def _to_next_text(self, data: bytes, at: int) -> int:
        newline = data.find(b"\n", at) if self._by_line else -1
        if newline < 0:
            return len(data)
        self._past(_NEWLINE)
        return newline + 1

    def _through_string(self, data: bytes, at: int) -> int:
        """To after its end; to a last backslash; or to the end of what there is."""
        matched = _IN_STRING.match(data, at)
        assert matched is not None
        at = matched.end()
        if at == len(data) or (data[at] == _BACKSLASH and at + 1 == len(data)):
            return at
        self._in_string = False
        return at + (data[at] != _NEWLINE)

    def _past(self, mark: int) -> None:
        if mark == _QUOTE:
            self._in_string = True
        elif mark != _NEWLINE:
            self._depth += 1 if mark in _OPENING else -1
        elif self._by_line:
            self._depth, self._found = 0, False


def _may_go_on(data: bytes, at: int) -> bool:
    """What begins here may turn out to be the member, once more of it has come."""
    return (
        _KEY.startswith(data[at : at + len(_KEY)])
        and len(data) - at < _HELD_BYTES_MAX
        and data.find(b"\n", at) < 0
    )


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
