"""The galleries for callers in a hurry: they get what there is in a few seconds, and the reading goes on."""

from collections.abc import Callable
from typing import Final, Protocol

import anyio
from anyio.abc import TaskStatus

from remuda.core.errors import Invalid, Unavailable
from remuda.gallery.model import Gallery, Reading, galleries_from_json

PATIENCE_S: Final = 5.0


class Galleries(Protocol):
    async def read(self, *, refresh: bool = False) -> tuple[Reading, ...]: ...


class Shelf:
    """`open_galleries` is for those that a request brings in place of the configured ones."""

    def __init__(
        self,
        configured: Galleries,
        open_galleries: Callable[[tuple[Gallery, ...]], Galleries],
        *,
        local_files: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._configured = configured
        self._open = open_galleries
        self._local_files = local_files
        self._patience_s = patience_s
        self._latest: tuple[Reading, ...] | None = None
        self._asked = anyio.Event()
        self._read = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            self._latest = await self._configured.read()
            self._read.set()
            self._read = anyio.Event()

    async def readings(self, galleries: str = "") -> tuple[Reading, ...]:
        """What the galleries offer: those of this JSON text, or the configured ones."""
        return await self._given(galleries) if galleries else await self._usual()

    async def _usual(self) -> tuple[Reading, ...]:
        read = self._read
        self._asked.set()
        with anyio.move_on_after(self._patience_s):
            await read.wait()
        if self._latest is None:
            raise Unavailable("the galleries are being read for the first time; try again in a moment")
        return self._latest

    async def _given(self, text: str) -> tuple[Reading, ...]:
        galleries = galleries_from_json(text)
        local = next((one.url for one in galleries if one.url.startswith("file:")), "")
        if local and not self._local_files:
            raise Invalid(f"the gallery {local} is a file of this frontend, which may not be named from here")
        with anyio.move_on_after(self._patience_s):
            return await self._open(galleries).read()
        raise Unavailable("the galleries that were given did not answer in time")
