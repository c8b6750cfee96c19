"""What is fetched, or half fetched, of files that have no place in the folder of models yet: for which paths,
so that it goes with their models, and how long it waits for another load. Everything here blocks on the disk.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError

from remuda.host.folder import write_private
from remuda.oci.blobs import BlobStore

log = structlog.get_logger(__name__)

UNUSED: Final = timedelta(days=3)  # Files of loads that are no longer wanted.
_NO_BUDGET: Final = 1 << 62
_NOTES: Final = "coming.json"
_PATHS_MAX: Final = 16  # Of one content: the latest.


@dataclass(frozen=True, slots=True)
class Coming:
    """The paths for which some content was fetched; `removed`: all of them have gone since."""

    paths: tuple[str, ...] = ()
    removed: bool = False


_COMING: Final = TypeAdapter(dict[str, Coming])
_turn: Final = Lock()  # Of all that write notes in this process.


class UnplacedFiles:
    """`store` is where files are fetched to; see placing.store_root."""

    def __init__(self, store: Path) -> None:
        self._store = BlobStore(store)
        self._notes = store / _NOTES

    def wanted(self, digests: Mapping[str, str]) -> None:
        """Files of this content, by path, are about to be fetched, if they are not there."""
        with _turn:
            before = self._read()
            here = self._store.unplaced()
            after = {digest: one for digest, one in before.items() if digest in here}
            for path, digest in digests.items():
                known = after.get(digest, Coming()).paths
                paths = (*(one for one in known if one != path), path)
                after[digest] = Coming(paths[-_PATHS_MAX:])
            self._write(before, after)

    def removed(self, paths: Collection[str]) -> None:
        """The files at these paths have gone, with their models."""
        gone = frozenset(paths)
        with _turn:
            before = self._read()
            after = {
                digest: replace(one, removed=True) if gone.issuperset(one.paths) else one
                for digest, one in before.items()
            }
            self._write(before, after)
        self.tidy()

    def tidy(self) -> None:
        """Let go of what belongs to removed files, now or once the fetch that has it open has ended."""
        with _turn:
            before = self._read()
            going = [digest for digest, one in before.items() if one.removed]
            left = {digest for digest in going if not self._store.let_go(digest)}
            after = {digest: one for digest, one in before.items() if not one.removed or digest in left}
            self._write(before, after)
        if gone := sorted(set(going) - left):
            log.info("unplaced_files_removed", digests=gone)

    def drop(self, digests: Collection[str]) -> tuple[tuple[str, ...], int]:
        """Which of these are gone now, and the bytes that are free since; what a fetch has open stays."""
        gone, freed = [], 0
        with _turn:
            for digest in digests:
                size = self._store.lone_bytes(digest)
                if self._store.let_go(digest):
                    gone.append(digest)
                    freed += size
        return tuple(gone), freed

    def sweep(self, now: datetime) -> None:
        """Let go of what no load has gone on with for long."""
        self._store.sweep(frozenset(), _NO_BUDGET, now - UNUSED)

    def _read(self) -> dict[str, Coming]:
        try:
            return _COMING.validate_json(self._notes.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:  # Then it goes when it has not been used for long.
            log.warning("unplaced_files_not_read", path=str(self._notes), reason=str(error))
            return {}

    def _write(self, before: Mapping[str, Coming], after: Mapping[str, Coming]) -> None:
        if before != after:
            self._notes.parent.mkdir(parents=True, exist_ok=True)
            write_private(self._notes, _COMING.dump_json(dict(after)).decode())
