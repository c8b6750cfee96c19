"""What a request's key and headers say of where it is to go, and when."""

from collections.abc import Mapping
from typing import Final

from remuda.accounts.keys import ApiKey, KeyScope
from remuda.core.errors import Forbidden
from remuda.router.fairness import SeatClaim
from remuda.router.hints import RoutingHints, hints_of

PREFER: Final = b"x-remuda-prefer"  # Nodes or labels whose replicas are taken first,
AVOID: Final = b"x-remuda-avoid"  # and last.
_SESSION: Final = b"x-remuda-session"  # Requests that name the same one go to one replica, if they can.
_SESSION_BYTES_MAX: Final = 256


def claim_of(key: ApiKey) -> SeatClaim:
    """On replicas that are full."""
    return SeatClaim(key.id, key.terms.weight, key.terms.batch)


def hints_in(headers: Mapping[bytes, bytes], key: ApiKey | None, *, open_to_all: bool) -> RoutingHints:
    """Forbidden with a key that may not choose, also on loopback (`open_to_all`), where none is needed."""
    if not (open_to_all if key is None else key.terms.may_route or key.scope is KeyScope.ADMIN):
        raise Forbidden(
            "X-Remuda-Prefer and X-Remuda-Avoid take a key that may choose nodes",
            hint="leave the headers out, or let the key: remuda keys edit NAME --may-route",
        )
    prefer, avoid = (headers.get(name, b"").decode("latin-1") for name in (PREFER, AVOID))
    return hints_of(prefer, avoid)


def session_of(headers: Mapping[bytes, bytes], request: object, key: ApiKey | None) -> str:
    """What tells one session from another: what the client says, or else whose key it is. Empty: nothing."""
    said = headers.get(_SESSION, b"")[:_SESSION_BYTES_MAX].decode("latin-1")
    user = getattr(request, "user", None)
    return said or (user if isinstance(user, str) else "") or ("" if key is None else key.id)
