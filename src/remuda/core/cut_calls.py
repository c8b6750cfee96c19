"""Calls of tools that a model was bound to write as JSON, and that broke off within: its answer was as long
as it may be. Pure."""

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_HEAD: Final = '{"name":"'
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_BEGUN: Final = re.compile(
    rf'\{{\s*"name"\s*:\s*(?P<name>{_STRING})(?:\s*,\s*"arguments"\s*:\s*(?P<arguments>\{{.*))?', re.DOTALL
)
_MESSAGE: Final = re.compile(
    r'\{\s*"message"\s*:\s*(?P<message>"(?:[^"\\]|\\[^u]|\\u[0-9a-fA-F]{4})*)', re.DOTALL
)
_BETWEEN: Final = re.compile(r"[\s,]*")
_DECODER: Final = json.JSONDecoder()


class CutCall(NamedTuple):
    """`arguments`: as far as they were written; empty: not begun."""

    name: str
    arguments: str = ""


def cut_calls(text: str) -> Sequence[CutCall] | None:
    """The calls in a text that was to be one, or a list of them, the last of which may have broken off. One
    without a whole name is left out. None: it is no such text."""
    begun = text.lstrip()
    at, calls = int(begun.startswith("[")), list[CutCall]()
    while True:
        at = _past(begun, at)
        try:
            value, end = _DECODER.raw_decode(begun, at)
        except (ValueError, RecursionError):
            break
        if (call := _whole(value)) is None:
            return None
        calls.append(call)
        at = end
    found = _BEGUN.match(begun, at)
    if found is not None and (name := _text(found["name"])) is not None:
        return [*calls, CutCall(name, found["arguments"] or "")]
    rest = "".join(begun[at:].split())
    if rest == "]":
        return calls or None
    return calls if begun and _HEAD.startswith(rest[: len(_HEAD)]) else None


def _whole(value: object) -> CutCall | None:
    match value:
        case {"name": str(name), "arguments": dict(arguments)}:
            return CutCall(name, json.dumps(arguments, ensure_ascii=False))
    return None


def _text(literal: str) -> str | None:
    """What is between quotation marks; None: it cannot be read."""
    try:
        text = json.loads(literal)
    except ValueError:
        return None
    return text.encode(errors="replace").decode() if isinstance(text, str) else None


def cut_message(arguments: str) -> str:
    """What stands in the message that these arguments have, as far as it was written."""
    found = _MESSAGE.match(arguments)
    return "" if found is None else _text(found["message"] + '"') or ""


def _past(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()


def whole_arguments(text: str) -> bool:
    """Whether they are JSON to the end."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
