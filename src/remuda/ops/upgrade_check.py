"""Checks now and then which digests the tags of installed images stand for, and what can be upgraded."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.model import Reading
from remuda.ops.bad_versions import BadVersions, Withheld, offered
from remuda.ops.pinning import pin_all
from remuda.ops.ports import Build, Pinner
from remuda.ops.upgrades import (
    CheckedSource,
    ImageStatus,
    Unchecked,
    Upgrade,
    candidates,
    checked_sources,
    unchecked,
    unread,
    upgrades,
)

log = structlog.get_logger(__name__)

FIRST: Final = timedelta(seconds=10)
EVERY: Final = timedelta(hours=6)
AGAIN: Final = timedelta(minutes=1)  # After a look that failed.


class Look(Protocol):
    async def __call__(self, *, afresh: bool = False) -> tuple[Sequence[ObservedNode], Sequence[Reading]]: ...


@dataclass(frozen=True, slots=True)
class Checked:
    """What could be upgraded, and whom nobody could ask."""

    upgrades: Mapping[str, Upgrade]
    unchecked: tuple[Unchecked, ...]
    unread: tuple[Unchecked, ...] = ()  # Galleries that nothing installed came from.
    sources: tuple[CheckedSource, ...] = ()  # Who was asked, and when.
    withheld: tuple[Withheld, ...] = ()  # Newer versions that failed to start where they were tried.


class UpgradeCheck:
    """What was heard is remembered; what follows from it is computed from what nodes have now."""

    def __init__(
        self,
        look: Look,
        pinner: Pinner,
        clock: Clock,
        *,
        bad_versions: Callable[[], Awaitable[BadVersions]],
        first: timedelta = FIRST,
        every: timedelta = EVERY,
    ) -> None:
        self._look = look
        self._bad_versions = bad_versions
        self._pinner = pinner
        self._clock = clock
        self._first = first
        self._every = every
        self._heard: dict[str, ImageStatus] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await anyio.sleep(self._first.total_seconds())
        while True:
            wait = self._every
            try:
                await self.check()
            except RemudaError as error:
                log.warning("upgrades_not_checked", reason=error.message)
                wait = min(wait, AGAIN)
            await anyio.sleep(wait.total_seconds())

    async def check(self) -> Checked:
        """Ask galleries and registries, each within a few seconds; then as `current`. Waits for no node."""
        nodes, readings = await self._look(afresh=True)
        uris = frozenset[str]().union(*candidates(nodes, readings).values())
        self._heard |= await self._ask(uris)
        self._heard = {uri: heard for uri, heard in self._heard.items() if uri in uris}
        checked = await self._checked(nodes, readings)
        unasked = [one.source for one in checked.unchecked]
        log.info("upgrades_checked", images=len(uris), upgrades=len(checked.upgrades), unasked=unasked)
        return checked

    async def current(self) -> Checked:
        """What could be upgraded, as far as was heard of galleries and registries."""
        return await self._checked(*await self._look())

    async def _checked(self, nodes: Sequence[ObservedNode], readings: Sequence[Reading]) -> Checked:
        found, withheld = offered(upgrades(nodes, readings, self._heard), await self._bad_versions())
        unasked = tuple(unchecked(nodes, readings, self._heard))
        sources = tuple(checked_sources(nodes, readings, self._heard))
        return Checked(found, unasked, tuple(unread(readings, unasked)), sources, withheld)

    async def _ask(self, uris: Collection[str]) -> Mapping[str, ImageStatus]:
        """A registry that cannot be asked takes nothing back of what it said before."""
        asked_at = self._clock.now()
        pins = await pin_all(self._pinner, [Build(uri) for uri in uris])
        return {
            build.uri: ImageStatus(pin.digest, at=asked_at)
            if pin.digest
            else replace(self._heard.get(build.uri, ImageStatus()), trouble=pin.trouble)
            for build, pin in pins.items()
        }
