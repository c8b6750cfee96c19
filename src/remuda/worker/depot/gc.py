"""Which blobs of a depot go, and why: by reference, age and budget."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.oci.blobs import StoredBlob, to_let_go
from remuda.wire.sizes import install_size
from remuda.worker.depot.depot import PARTIALS_STALE, Depot
from remuda.worker.depot.metadata import read_record

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Leaving:
    blob: StoredBlob
    why: str


@dataclass(frozen=True, slots=True)
class Collected:
    leaving: tuple[Leaving, ...]
    blobs_bytes: int  # Of those that leave.
    partials: int
    partials_bytes: int
    kept_bytes: int


def plan(
    blobs: Sequence[StoredBlob], referenced: Set[str], budget_bytes: int, unused_since: datetime
) -> tuple[Leaving, ...]:
    """First what no installed version is made of, once it is old or the budget needs it; then, while that is
    still exceeded, also the rest, longest unused first: it costs no more than fetching it again. Pure."""
    unwanted = to_let_go(blobs, referenced, budget_bytes, unused_since)
    rest = [blob for blob in blobs if blob not in unwanted]
    squeezed = to_let_go(rest, frozenset(), budget_bytes, _NEVER)
    budget = f"the budget of {install_size(budget_bytes)} is exceeded"
    return (
        *(
            Leaving(blob, "no installed backend needs it" if blob.used_at < unused_since else budget)
            for blob in unwanted
        ),
        *(Leaving(blob, f"{budget}, even by installed backends alone") for blob in squeezed),
    )


async def collect(
    depot: Depot,
    clock: Clock,
    *,
    budget_bytes: int,
    unused: timedelta,
    dry_run: bool = False,
) -> Collected:
    """Let go of blobs and stale downloads; `dry_run` changes nothing and only tells. What is in use stays."""
    return await run_sync(_collect, depot, clock.now(), budget_bytes, unused, dry_run)


def _collect(depot: Depot, now: datetime, budget_bytes: int, unused: timedelta, dry_run: bool) -> Collected:
    blobs = depot.store.listing()
    leaving = plan(blobs, referenced(depot), budget_bytes, now - unused)
    if not dry_run:
        leaving = tuple(one for one in leaving if depot.store.discard(one.blob.digest))
    swept = depot.store.sweep_partials(now - PARTIALS_STALE, dry_run=dry_run)
    gone = sum(one.blob.size for one in leaving)
    kept = sum(blob.size for blob in blobs) - gone
    return Collected(leaving, gone, swept.count, swept.freed_bytes, kept)


def referenced(depot: Depot) -> frozenset[str]:
    """The layers of every version that is installed, about to be, or kept to be switched back to."""
    places = depot.places
    folders = [
        *(path for path in places.backends.glob("*") if path.is_dir()),
        *(places.ready(name) for name in places.names_in("ready")),
        *(places.previous(name) for name in places.names_in("previous")),
    ]
    return frozenset(digest for folder in folders for digest in read_record(folder).layers)
