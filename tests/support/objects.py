"""Object storage in memory."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import IO

from remuda.core.errors import NotFound
from remuda.s3.account import StorageFailed
from remuda.s3.client import ObjectChanged, ObjectFacts


class MemoryStorage:
    """Implements worker.files.objects.SharedStorage. Breaks off after `breaks_after` bytes of a reading."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.readings: list[tuple[str, int]] = []  # Keys, and where each began.
        self.breaks_after: int | None = None
        self.replaced_by: bytes | None = None  # At the next reading.

    async def facts(self, key: str) -> ObjectFacts:
        if key not in self.objects:
            raise NotFound(f"not found: object {key}")
        return ObjectFacts(len(self.objects[key]), self._etag(key))

    async def read(
        self, key: str, facts: ObjectFacts, start: int, give: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self.readings.append((key, start))
        if self.replaced_by is not None:
            self.objects[key], self.replaced_by = self.replaced_by, None
        if self._etag(key) != facts.etag:
            raise ObjectChanged("replaced")
        end = len(self.objects[key]) if self.breaks_after is None else start + self.breaks_after
        await give(self.objects[key][start:end])
        if end < len(self.objects[key]):
            raise StorageFailed("broke off")

    async def write(self, key: str, file: IO[bytes], created_at: datetime) -> None:
        self.objects[key] = file.read()

    def _etag(self, key: str) -> str:
        return f'"{hash(self.objects[key])}"'
