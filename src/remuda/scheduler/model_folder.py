"""Models configured by files in the data folder: a file that appears adds a model, one that disappears
removes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync

from remuda.core.errors import Invalid, Rejected, RemudaError
from remuda.models.config import ModelConfig
from remuda.models.reading import check_absolute_paths, check_new_name, read_model
from remuda.scheduler.model import StoredModel
from remuda.scheduler.ports import ModelStore, RoutingTable

log = structlog.get_logger(__name__)

_LOOK_EVERY_S: Final = 5.0
_FILES_MAX: Final = 1000
_FILE_BYTES_MAX: Final = 1 << 20
_SUFFIXES: Final = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was when it was last read."""

    stamp: tuple[int, int]
    model: str = ""  # Empty: it cannot be used.


class ModelFolder:
    """`frontend` tells apart the folders of several frontends; each answers only for its own files."""

    def __init__(self, folder: Path, store: ModelStore, frontend: str, table: RoutingTable) -> None:
        self._folder = folder
        self._store = store
        self._origin = f"file:{frontend}:"
        self._table = table
        self._seen: dict[str, _Seen] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            try:
                await self.look()
            except RemudaError as error:  # The store is away.
                log.warning("model_folder_not_read", reason=error.message)
            except OSError as error:
                log.warning("model_folder_not_read", folder=str(self._folder), reason=str(error))
            await anyio.sleep(_LOOK_EVERY_S)

    async def look(self) -> None:
        """Take in what is new, and take out what is gone."""
        files = await run_sync(self._files)
        for name, (stamp, text) in files.items():
            seen = self._seen.get(name)
            if seen is None or seen.stamp != stamp:
                self._seen[name] = _Seen(stamp, await self._take_in(name, text))
        self._seen = {name: seen for name, seen in self._seen.items() if name in files}
        for one in await self._store.models():
            name = one.origin.removeprefix(self._origin)
            if one.origin.startswith(self._origin) and not self._describes(name, one.name):
                await self._take_out(name, one.name)

    def _describes(self, name: str, model: str) -> bool:
        """A file that cannot be used stands for what it was: it may be about to be written."""
        seen = self._seen.get(name)
        return seen is not None and seen.model in ("", model)

    async def _take_out(self, name: str, model: str) -> None:
        await self._store.remove_model(model)
        log.info("model_removed", model=model, file=name)
        # Another file may describe it, too: that one is read again.
        self._seen = {other: seen for other, seen in self._seen.items() if seen.model != model}
        self._table.rows_changed()

    async def _take_in(self, name: str, text: str) -> str:
        try:
            config = read_model(text, where=name)
            await self._check(config, name)
            await self._store.put_model(
                StoredModel(config.id, text, config.revision, origin=f"{self._origin}{name}")
            )
        except Rejected as error:
            log.error("model_file_refused", file=name, reason=str(error))
            return ""
        log.info("model_read", model=config.id, file=name, unknown_keys=list(config.unknown))
        self._table.rows_changed()
        return config.id

    async def _check(self, config: ModelConfig, name: str) -> None:
        known = {one.name for one in await self._store.models()}
        try:
            if config.id not in known:
                check_new_name(config.id)
            check_absolute_paths(config, self._folder)
        except Invalid as error:
            raise Invalid(f"{name}: {error.message}", hint=error.hint) from None

    def _files(self) -> Mapping[str, tuple[tuple[int, int], str]]:
        found: dict[str, tuple[tuple[int, int], str]] = {}
        if not self._folder.is_dir():
            return found
        for path in sorted(self._folder.iterdir())[: _FILES_MAX * 10]:
            if path.suffix not in _SUFFIXES or not path.is_file() or len(found) >= _FILES_MAX:
                continue
            facts = path.stat()
            if facts.st_size <= _FILE_BYTES_MAX:
                text = path.read_text(errors="replace")
                found[path.name] = ((facts.st_mtime_ns, facts.st_size), text)
        return found
