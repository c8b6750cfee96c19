"""How an answer can fail, once a replica has been chosen."""

from enum import StrEnum

from remuda.core.errors import PeerFailed


class Fault(StrEnum):
    UNREACHABLE = "unreachable"  # No connection, or lost before anything was said: it never began.
    BROKE = "broke"  # The replica went away, or answered what cannot be understood.
    NOT_LOADED = "not_loaded"  # It is there and has no model, or another one.
    REFUSED = "refused"  # It will not do this; no other replica would either.
    FAILED = "failed"  # It tried and says that it could not.
    SILENT = "silent"  # It said nothing for too long.


class UpstreamFailed(PeerFailed):
    """`status` is what the client gets."""

    code = "backend_failed"

    def __init__(self, fault: Fault, message: str, *, status: int = 502, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.fault = fault
        self.status = status

    @property
    def elsewhere(self) -> bool:
        """Another replica may do better."""
        return self.fault in (Fault.UNREACHABLE, Fault.BROKE, Fault.NOT_LOADED)
