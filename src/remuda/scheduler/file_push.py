"""The files of a model, pushed to a worker that does not fetch for itself: several at once, and how far they
are together. The first failure ends the others; what has come of them is kept there, and gone on with.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from remuda.core.clock import Clock
from remuda.core.errors import PeerFailed, RemudaError
from remuda.fleet.model import Node
from remuda.models.files import NeededFile
from remuda.ops.model import Step
from remuda.scheduler.ports import FilePush
from remuda.wire.backends import InstallProgress
from remuda.wire.files import FilePhase, WantedFile

PUSHED_AT_ONCE_MAX: Final = 4
STAGING_SHARE: Final = 90.0  # Of a load's way until its backend is looked at, as workers tell it.


@dataclass(frozen=True, slots=True)
class Pushed:
    """`folder` is the folder of models that the node was given; `sent_bytes` what it did not have."""

    folder: str
    sent_bytes: int


class FilesPush:
    """Of one load. `hashed` tells the SHA-256 of a file, `tell` shows how far it is."""

    def __init__(
        self,
        push: FilePush,
        models: Path,
        hashed: Callable[[NeededFile], Awaitable[str]],
        tell: Callable[[InstallProgress], None],
        clock: Clock,
    ) -> None:
        self._push = push
        self._models = models
        self._hashed = hashed
        self._tell = tell
        self._clock = clock
        self._seq = 0
        self._done: dict[int, int] = {}
        self._began: dict[int, int] = {}  # How much of each was there already.

    async def all(self, step: Step, model: str, files: Sequence[NeededFile], node: Node) -> Pushed:
        """At least one file. Below the model's own name, as the contract has it: its files are removed with
        one folder."""
        folders: dict[int, str] = {}
        failures: list[RemudaError] = []
        slots = anyio.CapacityLimiter(PUSHED_AT_ONCE_MAX)

        async def push(number: int, file: NeededFile) -> None:
            async with slots:
                try:
                    folders[number] = await self._one(step, model, files, number, node)
                except RemudaError as error:
                    failures.append(error)
                    tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for number, file in enumerate(files):
                tasks.start_soon(push, number, file)
        if failures:
            raise failures[0]
        sent = sum(file.size - self._began.get(number, file.size) for number, file in enumerate(files))
        return Pushed(folders[0], sent)

    async def _one(self, step: Step, model: str, files: Sequence[NeededFile], number: int, node: Node) -> str:
        file = files[number]
        wanted = WantedFile(path=file.path, size=file.size, sha256=await self._hashed(file))
        on_size = partial(self._reached, step, files, number)
        remote = await self._push.push(node, model, self._models / file.path, wanted, on_size)
        if not remote.endswith(f"/{file.path}"):
            raise PeerFailed(f"{step.node_name} has put {file.path} elsewhere: {remote}")
        return remote.removesuffix(f"/{file.path}")

    def _reached(self, step: Step, files: Sequence[NeededFile], number: int, size: int) -> None:
        file, total = files[number], sum(one.size for one in files)
        self._began.setdefault(number, size)
        self._done[number] = size
        done = sum(self._done.values())
        self._seq = max(self._seq + 1, int(self._clock.now().timestamp() * 1000))
        self._tell(
            InstallProgress(
                op_id=step.op,
                file_name=f"Copying {number + 1}/{len(files)} {file.path}",
                phase=FilePhase.STAGING,
                seq=self._seq,
                current_bytes=done,
                total_bytes=total,
                overall=STAGING_SHARE * done / total if total else 0.0,
                file_number=number + 1,
                file_count=len(files),
                file_bytes=size,
                file_size=file.size,
            )
        )
