"""Why a field of a request cannot be used, in words for its author rather than the decoder's. Pure."""

import re
from collections.abc import Mapping
from typing import Final, get_args

from remuda.gateway.openai.errors import InvalidField
from remuda.inference.requests import Role

_QUOTED_CHARS_MAX: Final = 100
_PLACE: Final = " - at `$"
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_TYPE: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_BOUND: Final = re.compile(r"Expected `\w+` (>=|<=|>|<) (\S+)")
_LENGTH: Final = re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)")
_ENUM: Final = re.compile(r"Invalid enum value (.*)", re.DOTALL)
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
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "messages.role": get_args(Role),
    "tools.type": ("function",),
    "tool_choice": ("none", "auto", "required"),
    "tool_choice.type": ("function",),
    "response_format.type": ("text", "json_object", "json_schema"),
    "encoding_format": ("float", "base64"),
}


def wrong_field(said: str) -> InvalidField:
    """`said` is what the decoder says of a body."""
    what, _, place = said.rpartition(_PLACE) if _PLACE in said else (said, "", "")
    param = place.removesuffix("`").removeprefix(".")
    if missing := _MISSING.fullmatch(what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidField(f"{param} is missing", param)
    return InvalidField(f"{param or 'the body'} {_words(what, param)}", param)


def _words(what: str, param: str) -> str:
    if wrong := _TYPE.fullmatch(what):
        wanted = [_KINDS.get(kind, "something else") for kind in wrong[1].split(" | ") if kind != "null"]
        return f"must be {' or '.join(wanted)}, not {_KINDS.get(wrong[2], 'this')}"
    if bound := _BOUND.fullmatch(what):
        return f"must be {_BOUNDS[bound[1]].format(bound[2].removesuffix('.0'))}"
    if length := _LENGTH.fullmatch(what):
        return _length(length[2] == "<=", "characters" if length[1] == "str" else "entries", int(length[3]))
    if enum := _ENUM.fullmatch(what):
        choices = _CHOICES.get(_INDEX.sub("", param), ())
        wanted_one = f"; use {' or '.join(choices)}" if choices else ""
        return f"cannot be {enum[1][:_QUOTED_CHARS_MAX]}{wanted_one}"
    return "cannot be used"


def _length(at_most: bool, of_what: str, count: int) -> str:
    if at_most:
        return f"must have at most {count} {of_what}"
    return "must not be empty" if count == 1 else f"must have at least {count} {of_what}"
