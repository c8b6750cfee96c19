"""What is in the folder of models, for the worker's reports. Looked at in a thread, now and then."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.wire.nodes import ModelFile
from remuda.worker.commands import limits

log = structlog.get_logger(__name__)

_UNFINISHED: Final = (".partial", ".part", ".tmp", ".download", ".incomplete")


@dataclass(frozen=True, slots=True)
class Listed:
    files: tuple[ModelFile, ...] = ()
    more: bool = False  # There are others that are not told.


class ModelListing:
    """`changed` is called when there is something new to report."""

    def __init__(self, folder: Path, changed: Callable[[], None]) -> None:
        self.path = str(folder.absolute())
        self.listed = Listed()
        self._folder = folder
        self._changed = changed

    async def run(self) -> None:
        """Keep `listed` up to date, until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(limits.MODELS_LISTED_EVERY_S)

    async def look(self) -> None:
        try:
            listed = await run_sync(list_models, self._folder, abandon_on_cancel=True)
        except OSError as error:
            log.warning("models_not_listed", folder=self.path, error=str(error))
            return
        if listed != self.listed:
            self.listed = listed
            self._changed()


def list_models(
    folder: Path, *, files_max: int = limits.MODEL_FILES_MAX, depth_max: int = limits.MODEL_FOLDERS_DEEP_MAX
) -> Listed:
    """The files of `folder` and of what lies below it, nearest first: hidden and unfinished ones are left
    out. A folder that is not there is empty. Blocks on the disk."""
    found: list[ModelFile] = []
    more = False
    level, looked_at = [""], 0
    for _ in range(depth_max):
        deeper: list[str] = []
        for place in level:
            for name, facts in _entries(folder / place):
                looked_at += 1
                if looked_at > limits.MODEL_ENTRIES_MAX:
                    return Listed(tuple(found), more=True)
                path = f"{place}{name}"
                if facts is None:
                    deeper.append(f"{path}/")
                elif len(found) < files_max:
                    found.append(ModelFile(path=path, size=facts))
                else:
                    more = True
        level = deeper
    return Listed(tuple(found), more or bool(level))


def _entries(folder: Path) -> Iterator[tuple[str, int | None]]:
    """Names in order, with the size of a file and None for a folder. What vanishes meanwhile is left out."""
    try:
        with os.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name.endswith(_UNFINISHED) or not _printable(entry.name):
            continue
        try:
            facts = None if entry.is_dir() else entry.stat()
        except OSError:  # It has just gone, or is a link to nothing.
            continue
        if facts is None:
            yield entry.name, None
        elif entry.is_file():
            yield entry.name, facts.st_size


def _printable(name: str) -> bool:
    """Reports are text: a name that is none cannot be told, nor asked for."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
