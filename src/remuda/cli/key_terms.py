"""Limits of keys, as people write them in options and read them in tables."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from remuda.cli.render import Column
    from remuda.wire.admin import KeyView

NEVER: Final = "never"
_NONE: Final = "none"
_FACTORS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_QUANTITY: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kmg]?)")
_SPAN: Final = re.compile(r"(\d{1,6})([hdw])")
_HOURS: Final = {"h": 1, "d": 24, "w": 168}
_SHORT: Final = (("G", 10**9), ("M", 10**6), ("k", 10**3))


class Quantity(click.ParamType[int]):
    """A whole number above zero, or `none`, which is 0 for the API."""

    name = "N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip().lower()
        if text == _NONE:
            return 0
        found = _QUANTITY.fullmatch(text)
        amount = float(found[1]) * _FACTORS[found[2]] if found else 0.0
        if not found or not amount or not amount.is_integer():
            self.fail(f"{str(value)!r} is not a number such as 60, 200k or 2M, and not `none`.", param, ctx)
        return int(amount)


class ExpiryTime(click.ParamType[str]):
    """A time as the API has it, from a span or a date; or `never`."""

    name = "WHEN"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip().lower()
        if text in (NEVER, _NONE):
            return NEVER
        try:
            return _instant(text).astimezone(UTC).isoformat()
        except (ValueError, OverflowError):
            self.fail(f"{str(value)!r} is not a span such as 30d, not a date, and not `never`.", param, ctx)


def _instant(text: str) -> datetime:
    """ValueError for what is neither a span nor a date."""
    from remuda.core.clock import SystemClock

    if found := _SPAN.fullmatch(text):
        return SystemClock().now() + timedelta(hours=int(found[1]) * _HOURS[found[2]])
    return datetime.fromisoformat(text)


def short(number: int) -> str:
    """2500000 as 2.5M: without a loss, or in full."""
    for unit, size in _SHORT:
        if number >= size and number % (size // 10 or 1) == 0:
            return f"{number / size:g}{unit}"
    return str(number)


def limits_of(key: "KeyView") -> list[tuple[str, str]]:
    """Those that there are: short, and in words."""
    named = (
        (key.requests_per_minute, "req/min", "requests per minute"),
        (key.tokens_per_minute, "tok/min", "tokens per minute"),
        (key.concurrent_requests, "at once", "requests at once"),
        (key.tokens_per_day, "tok/day", "tokens per day"),
        (key.tokens_per_month, "tok/month", "tokens per month"),
    )
    return [(f"{short(amount)} {unit}", f"{amount:,} {words}") for amount, unit, words in named if amount]


def key_columns(keys: Sequence["KeyView"]) -> list["Column"]:
    from remuda.cli.render import Column, local

    def when(instant: datetime | None) -> str:
        return NEVER if instant is None else local(instant)

    return [
        Column("NAME", [key.name for key in keys]),
        Column("SCOPE", [key.scope for key in keys]),
        Column("STATE", [key.state for key in keys]),
        Column("MODELS", [", ".join(key.models) or "all" for key in keys], needed=1),
        Column("LIMITS", [", ".join(text for text, _ in limits_of(key)) or _NONE for key in keys], needed=1),
        Column("LAST USED", [when(key.last_used_at) for key in keys], needed=2),
        Column("EXPIRES", [when(key.expires_at) for key in keys], needed=3),
        Column("BEGINS", [key.hint for key in keys], needed=4),
        Column("MADE", [local(key.created_at) for key in keys], needed=5),
        Column("ID", [key.id for key in keys], needed=6),
    ]


def key_facts(key: "KeyView") -> list[tuple[str, str]]:
    from remuda.cli.render import local

    shares = f"{key.weight}, of what other keys leave idle" if key.batch else str(key.weight)
    return [
        ("Name", key.name),
        ("Id", key.id),
        ("Begins", key.hint),
        ("Scope", key.scope),
        ("State", key.state),
        ("Models", ", ".join(key.models) or "all"),
        ("Limits", "; ".join(words for _, words in limits_of(key)) or _NONE),
        ("Weight", shares),
        ("May choose nodes", "yes" if key.may_route or key.scope == "admin" else "no"),
        ("Expires", NEVER if key.expires_at is None else local(key.expires_at)),
        ("Last used", NEVER if key.last_used_at is None else local(key.last_used_at)),
        ("Made", local(key.created_at)),
    ]
