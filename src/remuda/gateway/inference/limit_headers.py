"""The limits of a key as headers. Pure."""

from collections.abc import Callable, Sequence
from functools import cache

from remuda.accounts.budgets import REQUESTS
from remuda.accounts.limit_state import LimitState

HeaderFields = tuple[tuple[bytes, bytes], ...]


def limit_headers(
    limits: Sequence[LimitState], prefix: str, name: str, reset: Callable[[LimitState], str]
) -> HeaderFields:
    """`name`: how a header is called, by what it counts (`of`) and what it says (`what`)."""
    headers: HeaderFields = ()
    for shown in limits:
        limit, remaining, resets = _names(prefix, name, "requests" if shown.kind in REQUESTS else "tokens")
        headers += (
            (limit, b"%d" % shown.limit),
            (remaining, b"%d" % shown.remaining),
            (resets, reset(shown).encode()),
        )
    return headers


@cache
def _names(prefix: str, name: str, of: str) -> tuple[bytes, bytes, bytes]:
    limit, remaining, reset = (
        (prefix + name.format(of=of, what=what)).encode() for what in ("limit", "remaining", "reset")
    )
    return limit, remaining, reset
