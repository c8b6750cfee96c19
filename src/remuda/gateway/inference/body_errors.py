"""Why a field of a request cannot be used, in words for its author rather than the decoder's. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from remuda.core.errors import Invalid


class InvalidField(Invalid):
    """`param` is the field's place in the request, as `messages[0].role`; empty: the body as a whole."""

    def __init__(self, message: str, param: str = "", *, hint: str = "") -> None:
        super().__init__(message, hint=hint, param=param)


Choices = Mapping[str, tuple[str, ...]]
"""What a field takes, by its place without indexes, as `messages.role`."""
_QUOTED_CHARS_MAX: Final = 100
_PLACE: Final = " - at `$"
_ANY_KEY: Final = "[...]"  # How the decoder writes a key of the client's.
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_TYPE: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_BOUND: Final = re.compile(r"Expected `\w+` (>=|<=|>|<) (\S+)")
_LENGTH: Final = re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)")
_ENUM: Final = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)
_INDEX: Final = re.compile(r"\[\d*\]")
_KINDS: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS: Final = {">=": "{} or more", "<=": "{} or less", ">": "more than {}", "<": "less than {}"}


def wrong_field(message: str, choices: Choices) -> InvalidField:
    """What the decoder says of a body, in words for its author."""
    what, _, place = message.rpartition(_PLACE) if _PLACE in message else (message, "", "")
    param, inside, _ = place.removesuffix("`").removeprefix(".").partition(_ANY_KEY)
    if missing := _MISSING.fullmatch(what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidField(f"{param} is missing", param)
    each = ": each value" if inside else ""
    return InvalidField(f"{param or 'the body'}{each} {_words(what, param, choices)}", param)


def _words(what: str, param: str, choices: Choices) -> str:
    if wrong := _TYPE.fullmatch(what):
        if wrong[2] == "float" and "float" not in wrong[1] and "int" in wrong[1]:
            return "must be a whole number, without a fraction"
        wanted = [_KINDS.get(kind, "something else") for kind in wrong[1].split(" | ") if kind != "null"]
        return f"must be {' or '.join(wanted)}, not {_KINDS.get(wrong[2], 'this')}"
    if bound := _BOUND.fullmatch(what):
        return f"must be {_BOUNDS[bound[1]].format(bound[2].removesuffix('.0'))}"
    if length := _LENGTH.fullmatch(what):
        return _length(length[2] == "<=", "characters" if length[1] == "str" else "entries", int(length[3]))
    if enum := _ENUM.fullmatch(what):
        allowed = choices.get(_INDEX.sub("", param), ())
        wanted_one = f"; use {' or '.join(allowed)}" if allowed else ""
        return f"cannot be {enum[1][:_QUOTED_CHARS_MAX]}{wanted_one}"
    return "cannot be used"


def _length(at_most: bool, of_what: str, count: int) -> str:
    if at_most:
        return f"must have at most {count} {of_what}"
    return "must not be empty" if count == 1 else f"must have at least {count} {of_what}"


_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def check_effort(effort: str, place: str) -> None:
    """InvalidField for a word that says nothing of how much is to be thought: templates would skip it."""
    if effort not in _EFFORTS:
        raise InvalidField(f"{place} must be one of {', '.join(_EFFORTS)}", place)
