"""Which files in the folder of models this worker has fetched: only these go when their model is removed. One
that a person has put in the place of such a file is another file. Everything here blocks on the disk.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError

from remuda.host.folder import write_private

log = structlog.get_logger(__name__)

_NOTES: Final = "placed.json"


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """What tells it from a file that somebody puts there later."""

    inode: int
    size: int


_PLACED: Final = TypeAdapter(dict[str, PlacedFile])
_turn: Final = Lock()  # Of all that write notes in this process.


class PlacedFiles:
    """`store` is where files are fetched to; see placing.store_root."""

    def __init__(self, models: Path, store: Path) -> None:
        self._models = models
        self._notes = store / _NOTES

    def note(self, files: Mapping[str, Path]) -> None:
        """The files at these paths are, or are about to be, links to or copies of what is given."""
        with _turn:
            known = self._read()
            for path, file in files.items():
                facts = file.stat()
                known[path] = PlacedFile(facts.st_ino, facts.st_size)
            self._write(known)

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
