"""The galleries for callers that cannot wait: they get what could be read in a few seconds, and reading goes
on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

import anyio
from anyio.abc import TaskStatus

from remuda.core.errors import Invalid, Unavailable
from remuda.core.events import AutoResetEvent, Notifier
from remuda.gallery.model import Gallery, Reading, galleries_from_json

PATIENCE_S: Final = 5.0


class Galleries(Protocol):
    async def read(self, *, refresh: bool = False) -> tuple[Reading, ...]: ...


class GalleryView:
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
        self._asked = AutoResetEvent()
        self._afresh: anyio.Event | None = None  # For whom a copy will not do, nor a reading under way.
        self._reads = Notifier()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await self._asked.wait()
            afresh, self._afresh = self._afresh, None
            self._latest = await self._configured.read(refresh=afresh is not None)
            self._reads.notify()
            if afresh is not None:
                afresh.set()

    async def readings(self, galleries: str = "", *, afresh: bool = False) -> tuple[Reading, ...]:
        """What the galleries offer: those of this JSON text, or the configured ones. `afresh` asks them even
        where a copy is young; those that do not answer in time are said to be in trouble."""
        return await self._given(galleries) if galleries else await self._usual(afresh)

    async def _usual(self, afresh: bool) -> tuple[Reading, ...]:
        read = self._reads.changed
        if afresh:
            read = self._afresh = self._afresh or anyio.Event()
        self._asked.set()
        with anyio.move_on_after(self._patience_s) as waiting:
            await read.wait()
        if self._latest is None:
            raise Unavailable("the galleries are being read for the first time; try again in a moment")
        if afresh and waiting.cancelled_caught:
            return tuple(self._unanswered(one) for one in self._latest)
        return self._latest

    def _unanswered(self, reading: Reading) -> Reading:
        """Which of them is slow is not known: what ships with Remuda is not."""
        if reading.trouble or reading.gallery.builtin:
            return reading
        return replace(reading, trouble=f"no answer within {self._patience_s:g} s")

    async def _given(self, text: str) -> tuple[Reading, ...]:
        galleries = galleries_from_json(text)
        local = next((one.url for one in galleries if one.url.startswith("file:")), "")
        if local and not self._local_files:
            raise Invalid(f"the gallery {local} is a file on the frontend, which is not allowed here")
        with anyio.move_on_after(self._patience_s):
            return await self._open(galleries).read()
        raise Unavailable("the galleries that were given did not answer in time")
