"""The limits of a key as headers: of requests one, and of tokens one. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

from remuda.accounts.budgets import LimitKind
from remuda.accounts.limit_state import LimitState

HeaderFields = tuple[tuple[bytes, bytes], ...]
_SHOWN: Final = (  # The first that there is of each.
    ("requests", (LimitKind.REQUESTS_PER_MINUTE, LimitKind.CONCURRENT_REQUESTS)),
    ("tokens", (LimitKind.TOKENS_PER_MINUTE, LimitKind.TOKENS_PER_DAY, LimitKind.TOKENS_PER_MONTH)),
)


def limit_headers(
    limits: Sequence[LimitState], prefix: str, name: str, reset: Callable[[LimitState], str]
) -> HeaderFields:
    """`name`: how a header is called, by what it counts (`of`) and what it says (`what`). A limit that is
    used up is told rather than another one."""
    headers = list[tuple[bytes, bytes]]()
    for of, kinds in _SHOWN:
        found = [one for kind in kinds for one in limits if one.kind is kind]
        if not found:
            continue
        shown = next((one for one in reversed(found) if not one.remaining), found[0])
        told = {"limit": str(shown.limit), "remaining": str(shown.remaining), "reset": reset(shown)}
        headers += [
            ((prefix + name.format(of=of, what=what)).encode(), value.encode())
            for what, value in told.items()
        ]
    return tuple(headers)
