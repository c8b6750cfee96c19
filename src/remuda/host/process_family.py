"""A process with all its descendants: which are alive, waiting until all have ended, and killing them."""

import os
import signal
from collections.abc import Callable, Collection

import anyio
import anyio.to_thread

from remuda.host import descendants
from remuda.host.descendants import Identity, Mark, Seen
from remuda.host.orphans import reap

_POLL_FIRST_S = 0.01
_POLL_MOST_S = 0.2


class ProcessFamily:
    """Those in `leaders`, those whose mark fits, and all they started. Who was found once stays known.

    Leaders are children of this process that somebody waits for.
    """

    def __init__(self, leaders: Collection[Identity], marked: Callable[[Mark], bool]) -> None:
        self._leaders = leaders
        self._marked = marked
        self._known = frozenset(leaders)  # Replaced, not changed: a thread may be reading it.

    def present(self) -> list[Seen]:
        """Everyone of the family who has a pid now, zombies too."""
        found = descendants.family(descendants.everyone(), self._known, self._marked)
        self._known |= {seen.identity for seen in found}
        return found

    async def alive(self) -> list[Seen]:
        """The zombies that came to us when their parents died are cleared away meanwhile."""
        # In a thread: a process that hangs in the kernel may hold whoever reads its environment.
        found = await anyio.to_thread.run_sync(self.present, abandon_on_cancel=True)
        for seen in found:
            if seen.zombie and seen.parent == os.getpid() and seen.identity not in self._leaders:
                reap(seen.pid)
        return [seen for seen in found if not seen.zombie]

    async def until_gone(self) -> None:
        await self._until_gone(lambda seen: None)

    async def kill(self) -> None:
        """Until nobody is left: those being killed may be starting more."""
        await self._until_gone(lambda seen: descendants.send(seen.identity, signal.SIGKILL))

    async def _until_gone(self, act: Callable[[Seen], None]) -> None:
        pause_s = _POLL_FIRST_S
        while left := await self.alive():
            for seen in left:
                act(seen)
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_MOST_S)
