"""Names that installs have taken for models which are not there yet. Who brings the very file that such an
install fetches is not told to wait for it: the install is cancelled, for nothing is left for it to do.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from remuda.core.errors import Conflict, NotFound, Unavailable
from remuda.models.config import ModelConfig
from remuda.ops.model import Kind, Operation, Wish
from remuda.ops.ports import Filter, OpSignal, OpStore

INSTALLS: Final = frozenset({Kind.INSTALL_MODEL})
_INSTALLS_MAX: Final = 10  # Of one name; more than one only while another is being cancelled.

HashOf = Callable[[Path], Awaitable[str]]
BroughtHash = Callable[[], Awaitable[str]]
"""The SHA-256 of the only file that is brought, in hexadecimal; empty: there are several, or none is here."""


class ClaimedNames:
    def __init__(self, operations: OpStore, signal: OpSignal, models_path: Path, hash_of: HashOf) -> None:
        self._operations = operations
        self._signal = signal
        self._models_path = models_path
        self._hash_of = hash_of

    async def require_free(self, name: str) -> None:
        """Conflict while a model is being installed under this name."""
        for operation in await self._installs(name):
            raise _conflict(operation)

    async def claim(self, config: ModelConfig) -> tuple[str, ...]:
        """For a model that is added with a file of this machine's folder: Conflict as above, unless that is
        what the install fetches. Says what was cancelled."""

        async def brought() -> str:
            if not config.file:
                return ""
            try:
                return await self._hash_of(self._models_path / config.file)
            except (NotFound, Unavailable):  # Of a folder, too, which is never one file.
                return ""

        return await self.take_over(config.id, brought)

    async def take_over(self, name: str, brought: BroughtHash, own_source: str = "") -> tuple[str, ...]:
        """Cancels what fetches the same file. The same install, from `own_source`, is no other."""
        ended: list[str] = []
        for operation in await self.superseded(name, brought, own_source):
            await self._operations.wish(operation.id, Wish.CANCEL)
            self._signal.notify()
            ended.append(
                f"the install of {name} from {operation.source.uri} (operation {operation.id[:8]}) is "
                "cancelled: this is the file that it was to fetch"
            )
        return tuple(ended)

    async def superseded(self, name: str, brought: BroughtHash, own_source: str = "") -> list[Operation]:
        """Which installs would be cancelled. Conflict for one that is to bring anything else."""
        others = [one for one in await self._installs(name) if not own_source or one.source.uri != own_source]
        for operation in others:
            wanted = operation.source.model.sha256 if operation.source.model else ""
            if not wanted or await brought() != wanted:
                raise _conflict(operation)
        return others

    async def _installs(self, name: str) -> list[Operation]:
        live = Filter(finished=False, kinds=INSTALLS, model=name, limit=_INSTALLS_MAX)
        return [
            view.operation
            for view in await self._operations.views(live)
            if view.operation.wish is not Wish.CANCEL
        ]


def _conflict(operation: Operation) -> Conflict:
    op, source = operation.id[:8], operation.source
    return Conflict(
        f"{source.name} is being installed from {source.uri}, by operation {op}",
        hint=f"wait for it, end it with: remuda ops cancel {op}; or choose another name",
    )
