"""Which blobs to delete: by reference, age and budget. Pure."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class StoredBlob:
    digest: str
    size: int
    used_at: datetime


def to_let_go(
    blobs: Sequence[StoredBlob], keep: Set[str], budget_bytes: int, unused_since: datetime
) -> list[StoredBlob]:
    """Never a blob in `keep`, even when those alone exceed the budget.

    Of the others all that nobody used since `unused_since`, and then, least recently used first, as many as
    it takes for everything to fit the budget.
    """
    total = sum(blob.size for blob in blobs)
    going: list[StoredBlob] = []
    for blob in sorted(blobs, key=lambda blob: (blob.used_at, blob.digest)):
        if blob.digest not in keep and (blob.used_at < unused_since or total > budget_bytes):
            going.append(blob)
            total -= blob.size
    return going
