"""Which files in the folder of models this worker has fetched, for which models, and when a load needed them
last: only these go when their model is removed, or when room is needed. One that a person has put in the
place of such a file is another file. Everything here blocks on the disk.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError

from remuda.host.folder import write_private

log = structlog.get_logger(__name__)

_NOTES: Final = "placed.json"
_MODELS_MAX: Final = 16  # Of one file: the latest.


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """Inode and size tell it from a file that a person puts there later."""

    inode: int
    size: int
    sha256: str = ""  # Empty: no load has needed it since an earlier release fetched it.
    used_ms: int = 0
    models: tuple[str, ...] = ()


NOT_PLACED: Final = PlacedFile(0, 0)
_PLACED: Final = TypeAdapter(dict[str, PlacedFile])
_turn: Final = Lock()  # Of all that write notes in this process.


class PlacedFiles:
    """`store` is where files are fetched to; see placing.store_root."""

    def __init__(self, models: Path, store: Path) -> None:
        self._models = models
        self._notes = store / _NOTES

    def note(self, files: Mapping[str, Path], sha256: Mapping[str, str] = MappingProxyType({})) -> None:
        """The files at these paths are, or are about to be, links to or copies of what is given."""
        with _turn:
            known = self._read()
            for path, file in files.items():
                facts = file.stat()
                before = known.get(path, NOT_PLACED)
                known[path] = replace(
                    before, inode=facts.st_ino, size=facts.st_size, sha256=sha256.get(path, "")
                )
            self._write(known)

    def needed(self, digests: Mapping[str, str], model: str, now_ms: int, *, verified: bool = False) -> None:
        """A load of this model needs files of this content, by path: of them, those that are ours. With
        `verified` they have it."""

        def changed(path: str, file: PlacedFile) -> PlacedFile:
            if path not in digests or not self._is_same(path, file):
                return file
            models = (*(one for one in file.models if one != model), model)[-_MODELS_MAX:]
            later = max(now_ms, file.used_ms + 1)  # A reader of the earlier time sees that it changed.
            sha256 = digests[path] if verified else file.sha256
            return replace(file, sha256=sha256, used_ms=later, models=models)

        self._change(changed)

    def in_use(self, models: Collection[str], now_ms: int, at_most_every_ms: int) -> None:
        """These models are loaded now."""
        loaded = frozenset(models)

        def changed(_: str, file: PlacedFile) -> PlacedFile:
            due = file.used_ms + at_most_every_ms <= now_ms and not loaded.isdisjoint(file.models)
            return replace(file, used_ms=now_ms) if due else file

        self._change(changed)

    def here(self) -> Mapping[str, PlacedFile]:
        """All that this worker has fetched, and that are still the same files, by path."""
        return {path: file for path, file in self._read().items() if self._is_same(path, file)}

    def ours(self, paths: Collection[str]) -> frozenset[str]:
        """Those of these that this worker has fetched, and that are still the same files."""
        known = self._read()
        return frozenset(path for path in paths if path in known and self._is_same(path, known[path]))

    def forget(self, paths: Collection[str]) -> None:
        with _turn:
            known = self._read()
            left = {path: file for path, file in known.items() if path not in paths}
            if left != known:
                self._write(left)

    def remove_unused(self, path: str, used_ms: int, remove: Callable[[], None]) -> bool:
        """Have it removed, unless a load has needed it since then, or it is not ours any more."""
        with _turn:
            known = self._read()
            file = known.get(path)
            if file is None or file.used_ms != used_ms or not self._is_same(path, file):
                return False
            remove()
            self._write({other: kept for other, kept in known.items() if other != path})
            return True

    def _change(self, changed: Callable[[str, PlacedFile], PlacedFile]) -> None:
        with _turn:
            known = self._read()
            after = {path: changed(path, file) for path, file in known.items()}
            if after != known:
                self._write(after)

    def _is_same(self, path: str, placed: PlacedFile) -> bool:
        try:
            facts = (self._models / path).lstat()
        except OSError:
            return False
        return (facts.st_ino, facts.st_size) == (placed.inode, placed.size)

    def _read(self) -> dict[str, PlacedFile]:
        try:
            return _PLACED.validate_json(self._notes.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:  # Then nothing is known to be ours, and everything stays.
            log.warning("placed_files_not_read", path=str(self._notes), reason=str(error))
            return {}

    def _write(self, known: Mapping[str, PlacedFile]) -> None:
        self._notes.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._notes, _PLACED.dump_json(dict(known)).decode())
