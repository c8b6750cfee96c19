"""Finds tool calls in generated text, with or without a grammar. Pure, and never fails: text that is no call
is the answer."""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

_MARKED: Final = re.compile(
    r"<tool_call>(?P<tagged>.*?)(?:</tool_call>|\Z)|```(?:json|tool_call)?\s(?P<fenced>.*?)(?:```|\Z)",
    re.DOTALL,
)
_BETWEEN: Final = re.compile(r"[\s,;]*")
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class FoundCall:
    name: str
    arguments_json: str  # An object.


@dataclass(frozen=True, slots=True)
class Parsed:
    content: str
    calls: tuple[FoundCall, ...] = ()


def tool_calls_in(text: str, names: Collection[str], no_action: str = "") -> Parsed:
    """Calls of tools that are among `names`, and what was said beside them.

    A call is a JSON object with a name and arguments, or a list of such; it is the whole text, or stands in
    fences or <tool_call> tags. Of a call of `no_action` the message is what was said.
    """
    finder = _Finder(names, no_action)
    if (whole := finder.read(text)) is not None:
        return whole
    texts: list[str] = []
    calls: list[FoundCall] = []
    at = 0
    for marked in _MARKED.finditer(text):
        found = finder.read(marked["tagged"] or marked["fenced"] or "")
        if found is not None:
            texts += [text[at : marked.start()].strip(), found.content]
            calls += found.calls
            at = marked.end()
    if at == 0:
        return Parsed(text)
    texts.append(text[at:].strip())
    return Parsed("\n".join(filter(None, texts)), tuple(calls))


class _Finder:
    def __init__(self, names: Collection[str], no_action: str) -> None:
        self._names = names
        self._no_action = no_action if no_action not in names else ""

    def read(self, text: str) -> Parsed | None:
        """None unless the text is calls and nothing else."""
        fenced = _MARKED.fullmatch(text.strip())
        inner = fenced["fenced"] if fenced and fenced["fenced"] else text
        try:
            items = [
                item for value in _values(inner) for item in (value if isinstance(value, list) else [value])
            ]
            found = [self._call(item) for item in items]
        except (ValueError, RecursionError):
            return None
        if not found or None in found:
            return None
        contents = [call.content for call in found if isinstance(call, Parsed)]
        return Parsed("\n".join(contents), tuple(call for call in found if isinstance(call, FoundCall)))

    def _call(self, item: JsonValue) -> FoundCall | Parsed | None:
        """A call, what was said in its place, or None for anything else."""
        if isinstance(item, dict) and isinstance(item.get("function"), dict):
            item = item["function"]
        if not isinstance(item, dict):
            return None
        name, arguments = item.get("name"), item.get("arguments", item.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments or "{}")
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        if self._no_action and name == self._no_action:
            message = arguments.get("message", "")
            return Parsed(_sound(message if isinstance(message, str) else _json(message)))
        return FoundCall(name, _json(arguments)) if name in self._names else None


def _values(text: str) -> Iterator[JsonValue]:
    """The JSON values that the text consists of, one after the other. ValueError for other texts."""
    at = _BETWEEN.match(text, 0)
    while at is not None and at.end() < len(text):
        value, end = _DECODER.raw_decode(text, at.end())
        yield value
        at = _BETWEEN.match(text, end)


def _json(value: JsonValue) -> str:
    """ValueError for numbers that JSON has not. Half a character, which only escapes can write, stays one."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if _sound(text) == text else json.dumps(value)


def _sound(text: str) -> str:
    """Half characters are none."""
    return text.encode(errors="replace").decode()
