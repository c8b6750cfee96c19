"""Responses that are kept, so that a conversation can go on with them and answers can be fetched later: what
is kept of one, how it is seen, and the port of those who keep it."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from remuda.core.errors import Invalid

LEASE: Final = timedelta(seconds=30)  # For which a frontend's word counts that it works on a response.
CHAIN_MAX: Final = 1000  # Responses that one goes on from.
CHAIN_BYTES_MAX: Final = 32 << 20
KEPT_BYTES_MAX: Final = 16 << 20  # Of one response, its input included.
SWEPT_AT_ONCE: Final = 500
OPEN: Final = ("queued", "in_progress")
_LOST: Final = msgspec.json.encode(
    {"code": "server_error", "message": "the frontend that worked on it went away; ask again"}
)


class PreviousResponseMissing(Invalid):
    """OpenAI's own code."""

    code = "previous_response_not_found"


class StoredResponse(Struct, frozen=True, kw_only=True):
    """`owner`: the id of the key that asked for it, the only one to which it exists; empty where no key is
    asked for. All bytes are JSON; `echo` is members of an object."""

    id: str
    owner: str
    model: str
    status: str
    created: int  # Unix seconds.
    echo: bytes
    input: bytes
    output: bytes = b"[]"
    usage: bytes = b"null"
    error: bytes = b"null"
    incomplete: bytes = b"null"
    completed: int = 0  # Unix seconds; 0: not yet, or never.
    previous_id: str = ""
    background: bool = False
    lease_until: datetime | None = None  # Of one that is worked on.

    @property
    def open(self) -> bool:
        return self.status in OPEN

    @property
    def kept_bytes(self) -> int:
        return len(self.echo) + len(self.input) + len(self.output)


def as_seen(kept: StoredResponse, now: datetime) -> StoredResponse:
    """One that is not worked on any more has failed, whether or not that is written down."""
    if not kept.open or kept.lease_until is None or kept.lease_until >= now:
        return kept
    return msgspec.structs.replace(kept, status="failed", error=_LOST, lease_until=None)


def over_budget(kept: Sequence[tuple[str, int]], bytes_max: int) -> list[str]:
    """Which of these (id, bytes), the newest first, do not fit."""
    together, gone = 0, list[str]()
    for response_id, size in kept:
        together += size
        if together > bytes_max:
            gone.append(response_id)
    return gone


class ResponseStore(Protocol):
    """To each of these, one of another owner does not exist."""

    async def add(self, kept: StoredResponse, chain: Collection[str]) -> None:
        """Keep it, and note that those of `chain`, from which it goes on, are in use."""
        ...

    async def one(self, response_id: str, owner: str) -> StoredResponse | None: ...

    async def chain(self, response_id: str, owner: str) -> Sequence[StoredResponse]:
        """This one and all that it goes on from, the oldest first. PreviousResponseMissing if one of them is
        not there; Invalid if they are too many or too large."""
        ...

    async def finish(self, ended: StoredResponse) -> bool:
        """Write down how one ended that was worked on. False: it was ended before, or deleted."""
        ...

    async def cancel(self, response_id: str, owner: str) -> StoredResponse | None:
        """End one that is worked on; another one stays as it is."""
        ...

    async def delete(self, response_id: str, owner: str) -> bool: ...

    async def renew(self, working_on: Collection[str]) -> Collection[str]:
        """Those of these that are still to be worked on."""
        ...

    async def sweep(self, retention: timedelta, owner_bytes_max: int) -> int:
        """Remove what was not used for so long, and the oldest of owners that have too much; write down what
        is not worked on any more. Answers how many were removed."""
        ...
