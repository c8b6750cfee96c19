"""The limits of a key as headers. Pure."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from remuda.accounts.limit_state import LimitState

HeaderFields = tuple[tuple[bytes, bytes], ...]
_Names = tuple[bytes, bytes, bytes]  # Of the limit, of what remains of it, and of when all of it is back.


class HeaderNames(NamedTuple):
    """How an API calls them: made once, for they are in every answer."""

    requests: _Names
    tokens: _Names

    @classmethod
    def of(cls, name: str) -> "HeaderNames":
        """`name`: by what a header counts (`of`) and what it says (`what`)."""
        return cls(_names(name, "requests"), _names(name, "tokens"))


def limit_headers(
    limits: Sequence[LimitState], names: HeaderNames, reset: Callable[[LimitState], bytes]
) -> HeaderFields:
    headers: HeaderFields = ()
    for shown in limits:
        limit, remaining, resets = names.requests if shown.of_requests else names.tokens
        headers += (
            (limit, b"%d" % shown.limit),
            (remaining, b"%d" % shown.remaining),
            (resets, reset(shown)),
        )
    return headers


def _names(name: str, of: str) -> _Names:
    limit, remaining, reset = (
        name.format(of=of, what=what).encode() for what in ("limit", "remaining", "reset")
    )
    return limit, remaining, reset
