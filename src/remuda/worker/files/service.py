"""The files of this worker: its part of the HTTP server, its commands on the bus, and the sweeping."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid
from remuda.worker.commands.dispatch import Answering
from remuda.worker.files.areas import FileAreas
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.keys import Area
from remuda.worker.files.objects import ObjectFiles, SharedStorage
from remuda.worker.files.pages import FilePages
from remuda.worker.files.sweep import Sweeper
from remuda.worker.files.uploads import EphemeralUse, Uploads

log = structlog.get_logger(__name__)


class FileService:
    """`run` it once. `pages` can be asked at any time."""

    def __init__(
        self, models: Path, *, clock: Clock, entropy: Entropy, storage: SharedStorage | None = None
    ) -> None:
        """Without `storage` there are no commands on the bus, as with LocalAI's workers."""
        self._areas = FileAreas(models)
        self.hashes = Hashes()
        ephemeral = EphemeralUse()
        uploads = Uploads(self._areas, self.hashes, entropy, ephemeral)
        self.pages = FilePages(self._areas, self.hashes, uploads, entropy)
        objects = None if storage is None else ObjectFiles(self._areas, self.hashes, storage, clock, entropy)
        self.commands: Sequence[Answering] = () if objects is None else objects.commands()
        self._sweeper = Sweeper(self._areas, clock, ephemeral)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Started means that the staging folder is there."""
        try:
            await run_sync(self._areas.make, Area.STAGING)
        except Invalid as error:
            log.warning("staging_folder_not_made", reason=error.message)
        task_status.started()
        try:
            await self._sweeper.run()
        finally:
            self.hashes.stop()
