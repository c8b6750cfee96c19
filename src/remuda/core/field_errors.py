"""Validation errors in plain words instead of the validation library's. Pure."""

from collections.abc import Callable, Mapping
from typing import Final

from pydantic_core import ErrorDetails

_PLACE_CHARS_MAX: Final = 120  # Map keys come from the client and may be long.
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "bytes": "a text",
    "tuple": "a list",
    "list": "a list",
    "set": "a list",
    "frozen": "a list",
    "iterable": "a list",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "dataclass": "an object",
    "datetime": "a time like 2026-01-31T12:00:00Z",
    "timezone": "a time with its zone, like 2026-01-31T12:00:00Z",
    "time": "a duration",
    "url": "a URL",
    "uuid": "a UUID",
    "none": "absent",
}
_BOUNDS: Final[Mapping[str, Callable[[Mapping[str, object]], str]]] = {
    "missing": lambda ctx: "is missing",
    "extra_forbidden": lambda ctx: "is not known here",
    "greater_than_equal": lambda ctx: f"must be {ctx.get('ge')} or more",
    "greater_than": lambda ctx: f"must be more than {ctx.get('gt')}",
    "less_than_equal": lambda ctx: f"must be {ctx.get('le')} or less",
    "less_than": lambda ctx: f"must be less than {ctx.get('lt')}",
    "string_too_short": lambda ctx: _at_least(ctx, "character"),
    "string_too_long": lambda ctx: f"must have at most {ctx.get('max_length')} characters",
    "too_short": lambda ctx: _at_least(ctx, "entry"),
    "too_long": lambda ctx: f"must have at most {ctx.get('max_length')} entries",
    "string_pattern_mismatch": lambda ctx: "has characters that are not accepted",
    "literal_error": lambda ctx: f"must be {ctx.get('expected')}",
    "enum": lambda ctx: f"must be {ctx.get('expected')}",
}


def field_error(detail: ErrorDetails, *, subject: str = "") -> str:
    """`limit must be a whole number`. `subject` names what is wrong where the detail has no place of its own.
    Values are not shown: they may be secrets."""
    where = place(detail["loc"]) or subject
    kind, ctx = detail["type"], detail.get("ctx", {})
    if kind in ("value_error", "assertion_error"):  # Our own validators have said it.
        message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        return f"{where}: {message}" if where else message
    return f"{where} {wanted(kind, ctx)}".lstrip()


def wanted(kind: str, ctx: Mapping[str, object]) -> str:
    """What a library's kind of error asks for; empty-handed it says that the value cannot be used."""
    if kind in _BOUNDS:
        return _BOUNDS[kind](ctx)
    accepted = _KINDS.get(kind.partition("_")[0])
    return f"must be {accepted}" if accepted else "cannot be used"


def place(location: tuple[int | str, ...]) -> str:
    """Where it is, as `messages[0].role`."""
    steps = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(steps).removeprefix(".")[:_PLACE_CHARS_MAX]


def _at_least(ctx: Mapping[str, object], what: str) -> str:
    least = ctx.get("min_length")
    plural = f"{what.removesuffix('y')}ies" if what.endswith("y") else f"{what}s"
    return "must not be empty" if least == 1 else f"must have at least {least} {plural}"
