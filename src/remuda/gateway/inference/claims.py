"""What a request's key and headers say of where it is to go, and when."""

from collections.abc import Mapping
from typing import Final

from remuda.accounts.keys import ApiKey
from remuda.router.fairness import SeatClaim

_SESSION: Final = b"x-remuda-session"  # Requests that name the same one go to one replica, if they can.
_SESSION_BYTES_MAX: Final = 256


def claim_of(key: ApiKey) -> SeatClaim:
    """On replicas that are full."""
    return SeatClaim(key.id, key.terms.weight, key.terms.batch)


def session_of(headers: Mapping[bytes, bytes], request: object, key: ApiKey | None) -> str:
    """What tells one session from another: what the client says, or else whose key it is. Empty: nothing."""
    said = headers.get(_SESSION, b"")[:_SESSION_BYTES_MAX].decode("latin-1")
    user = getattr(request, "user", None)
    return said or (user if isinstance(user, str) else "") or ("" if key is None else key.id)
