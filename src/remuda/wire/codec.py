"""Messages to bytes and back. The peer may be Go: null means absent, and unknown fields are skipped.

Reading is tolerant about what is there and strict about types. A complaint names the field, never its value.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import from_json

from remuda.core.errors import Invalid, TooLarge
from remuda.core.field_errors import field_error
from remuda.core.hints import likeness

PAYLOAD_BYTES_MAX: Final = 1024 * 1024  # What a NATS server carries by default.
_BYTES_PER_CONTAINER: Final = 50  # Of what is allowed, unless a bound is given.
_CONTAINERS_LEAST: Final = 1000
_VALUES_PER_CONTAINER: Final = 4
_ERRORS_NAMED_MAX: Final = 3
_FIELD_CHARS_MAX: Final = 100
_NEAR_MIN: Final = 0.3  # Likeness of a field that may have been meant.
_POSITION: Final = re.compile(r"line (\d+) column (\d+)")

NOTHING: Final = b"null"
"""The payload of a message that is all subject, as Go publishes it."""

OMIT_EMPTY: Final = Field(exclude_if=lambda value: not value)
"""Marks a field that is left out while it holds "", 0, False or an empty collection."""

OMIT_NONE: Final = Field(exclude_if=lambda value: value is None)
"""Marks a field whose zero is a statement of its own: only None is left out."""

SECRET: Final = Field(repr=False)
"""Marks a field that no log line or traceback may show."""


def _whole(value: object) -> object:
    """Numbers like 1e3 are whole; a fraction stays a float, which the integer type then refuses."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _instant(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        instant = datetime.fromisoformat(value)
        return instant.astimezone(UTC) if instant.tzinfo else instant  # Without a zone: refused as not aware.
    except (ValueError, OverflowError) as error:
        raise ValueError("must be a time like 2026-01-31T12:00:00Z") from error


def rfc3339(instant: datetime) -> str:
    """The way Go writes times: UTC as Z, and no trailing zeros in the fraction."""
    utc = instant.astimezone(UTC)
    fraction = f".{utc.microsecond:06d}".rstrip("0").rstrip(".")
    return f"{utc.replace(microsecond=0, tzinfo=None).isoformat()}{fraction}Z"


def _shortest(value: float) -> int | float:
    """Go writes a whole float without a fraction."""
    return int(value) if value.is_integer() else value


WHOLE: Final = BeforeValidator(_whole)
"""Marks an integer. It stands behind the bounds, or the JSON schema does not name them."""

Uint64 = Annotated[int, Field(ge=0, le=2**64 - 1), WHOLE]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), WHOLE]
Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1), WHOLE]
Count = Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]
"""A small number of things: replicas, files, requests. `Uint64` is for bytes and other large figures."""

Number = Annotated[
    float,
    Field(allow_inf_nan=False),
    PlainSerializer(_shortest, when_used="json"),
    WithJsonSchema({"type": "number"}),
]
Timestamp = Annotated[
    AwareDatetime,
    BeforeValidator(_instant),
    PlainSerializer(rfc3339, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
GO_ZERO_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)
"""What a Go peer sends for "no time"."""

_Item = TypeVar("_Item")
Many = Annotated[tuple[_Item, ...], Field(strict=False)]
"""A JSON list. Held as a tuple, so that a frozen message cannot change through it."""


class Message(BaseModel):
    """One JSON object on the wire. Unknown fields are ignored: peers are upgraded one at a time."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _null_means_absent(cls, data: object) -> object:
        if data is None:
            return {}
        if isinstance(data, Mapping):
            return {name: value for name, value in data.items() if value is not None}
        return data


class OptionalMessage(Message):
    """A message that may be sent as no bytes at all, which reads like `{}`."""


M = TypeVar("M", bound=BaseModel)


def encode(message: BaseModel) -> bytes:
    """Compact JSON in UTF-8, fields in the order of the class."""
    return message.model_dump_json().encode()


def decode(
    cls: type[M],
    payload: bytes,
    *,
    bytes_max: int = PAYLOAD_BYTES_MAX,
    containers_max: int | None = None,
) -> M:
    """The message in `payload`. Raises TooLarge, or Invalid naming each field that cannot be read.

    `null` reads like `{}`, as it does in Go; no bytes at all do so only for an OptionalMessage. The number of
    objects and lists is bounded, and that of all values to a multiple: a megabyte of empty objects takes
    seconds to check.
    """
    if len(payload) > bytes_max:
        raise TooLarge(f"the message has {len(payload)} bytes, more than the {bytes_max} allowed")
    if containers_max is None:
        containers_max = max(bytes_max // _BYTES_PER_CONTAINER, _CONTAINERS_LEAST)
    if max(_counts(payload)) > containers_max:
        _check_counts(payload, containers_max)
    if not payload and issubclass(cls, OptionalMessage):
        return cls()
    try:
        document: object = from_json(payload, allow_inf_nan=False)
    except ValueError as error:
        raise Invalid(_not_json(payload, str(error))) from None
    try:
        return cls.model_validate(document)
    except ValidationError as error:
        raise Invalid(_in_words(error)) from None  # The chain would carry the values, secrets included.


def refuse_unknown_fields(cls: type[BaseModel], payload: bytes) -> None:
    """Raises Invalid for a field that this message does not have, with the nearest that it has. `payload` is
    one that `decode` has read."""
    document: object = from_json(payload) if payload else None
    _refuse_unknown(cls, document, "")


def _refuse_unknown(cls: type[BaseModel], document: object, place: str) -> None:
    if not isinstance(document, Mapping):
        return
    known = cls.model_fields
    for name, value in document.items():
        if name not in known:
            shown = f"{place}{name[:_FIELD_CHARS_MAX]}"
            if not known:
                raise Invalid(f"{shown!r} is not a known field", hint="this request takes no fields")
            near = max(known, key=lambda one: likeness(name, one))
            if likeness(name, near) >= _NEAR_MIN:
                hint = f"did you mean {place}{near}?"
            else:
                hint = f"known here: {', '.join(known)}"
            raise Invalid(f"{shown!r} is not a known field", hint=hint)
        inner = known[name].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            _refuse_unknown(inner, value, f"{place}{name}.")


def _counts(text: bytes) -> tuple[int, int]:
    """At most how many objects and lists there are, and how many values as a share of what is allowed."""
    return text.count(b"{") + text.count(b"["), text.count(b",") // _VALUES_PER_CONTAINER


def _check_counts(payload: bytes, containers_max: int) -> None:
    """Without what stands in texts."""
    plain = payload.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in payload else payload
    containers, values = _counts(b"".join(plain.split(b'"')[::2]))
    if containers > containers_max:
        raise Invalid(f"the message has more than {containers_max} objects and lists")
    if values > containers_max:
        raise Invalid(f"the message has more than {containers_max * _VALUES_PER_CONTAINER} values")


def _not_json(payload: bytes, reason: str) -> str:
    """Where it breaks; the parser's own words are about parsing."""
    if not payload.strip():
        return "the message is empty, which is not JSON"
    found = _POSITION.search(reason)
    return (
        f"the message is not JSON: line {found[1]}, column {found[2]}" if found else "the message is not JSON"
    )


def _in_words(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    named = [field_error(detail, subject="the message") for detail in found[:_ERRORS_NAMED_MAX]]
    more = len(found) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")
