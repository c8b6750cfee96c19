"""Looks now and then what the tags of installed images stand for, and says what could be upgraded."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import RemudaError
from remuda.gallery.model import Reading
from remuda.ops.pinning import pin_all
from remuda.ops.pins import Build, Pinner
from remuda.ops.sightings import NodeView
from remuda.ops.upgrades import Upgrade, candidates, upgrades

log = structlog.get_logger(__name__)

FIRST: Final = timedelta(seconds=10)
EVERY: Final = timedelta(hours=6)
AGAIN: Final = timedelta(minutes=1)  # After a look that failed.

Look = Callable[[], Awaitable[tuple[Sequence[NodeView], Sequence[Reading]]]]


class UpgradeCheck:
    """Digests are remembered; what follows from them is computed from what nodes have now."""

    def __init__(
        self, look: Look, pinner: Pinner, *, first: timedelta = FIRST, every: timedelta = EVERY
    ) -> None:
        self._look = look
        self._pinner = pinner
        self._first = first
        self._every = every
        self._digests: dict[str, str] = {}

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

    async def check(self) -> dict[str, Upgrade]:
        """Ask the registries, each within a few seconds; then as `current`. Waits for no node."""
        nodes, readings = await self._look()
        uris = frozenset(candidates(nodes, readings).values())
        self._digests |= await self._ask(uris)
        self._digests = {uri: digest for uri, digest in self._digests.items() if uri in uris}
        found = upgrades(nodes, readings, self._digests)
        log.info("upgrades_checked", images=len(uris), upgrades=len(found))
        return found

    async def current(self) -> dict[str, Upgrade]:
        """What could be upgraded, as far as was heard of the registries."""
        nodes, readings = await self._look()
        return upgrades(nodes, readings, self._digests)

    async def _ask(self, uris: Collection[str]) -> Mapping[str, str]:
        pins = await pin_all(self._pinner, [Build(uri) for uri in uris])
        return {build.uri: pin.digest for build, pin in pins.items() if pin.digest}
