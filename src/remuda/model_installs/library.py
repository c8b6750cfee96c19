"""The files of models on this machine: their content by digest, and links to it in the folder of models, made
only once all files of a model are whole and verified. What the fleet has brought is written down, so that
nothing else is ever removed. Everything here blocks on the disk: not for an event loop.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from stat import S_ISREG
from typing import Final, NamedTuple

import structlog
from pydantic import TypeAdapter, ValidationError

from remuda.core.errors import Conflict, Misconfigured, NotFound, RemudaError
from remuda.core.os_errors import is_full, os_reason
from remuda.host.folder import write_private
from remuda.models.files import ManifestFile
from remuda.oci.blobs import BlobStore
from remuda.oci.disk import free_bytes, require_headroom
from remuda.oci.errors import disk_full

log = structlog.get_logger(__name__)

_STAGING: Final = ".installing-"  # Hidden: neither workers nor backends look there.
_READ_ONLY: Final = 0o444
_NO_BUDGET: Final = 1 << 62
UNUSED: Final = timedelta(days=3)  # For which what has come for an install that failed waits for another try.


class Stamp(NamedTuple):
    """What a file looked like when it was put in its place: while it still does, it was not written to."""

    inode: int
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class BroughtModel:
    """What the fleet has put into the folder of models for one model."""

    name: str
    op: str  # The operation that did.
    files: tuple[ManifestFile, ...]  # While they are replaced also those of before, of one path twice.
    stamps: Mapping[str, Stamp] = field(default_factory=dict)  # By path; a missing one costs a checksum.


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of the files that were brought for a model."""

    freed_bytes: int = 0
    used: tuple[str, ...] = ()  # Stay, because other models name them.
    changed: tuple[str, ...] = ()  # Stay, because they are not what was brought: a person has changed them.


@dataclass(frozen=True, slots=True)
class Arrived:
    """What has come so far for one operation: digests by path, of this revision of its source."""

    revision: str
    digests: Mapping[str, str]


_BROUGHT: Final = TypeAdapter(BroughtModel)
_ARRIVED: Final = TypeAdapter(Arrived)


class ModelLibrary:
    """`root` is this frontend's own; `models` is the folder that backends read."""

    def __init__(self, root: Path, models: Path) -> None:
        self.blobs = BlobStore(root)
        self.models = models
        self._notes = root / "brought"
        self._arrivals = root / "arrived"

    # Before anything is fetched.

    def check_room(self, what: str, missing_bytes: int | None, whole_bytes: int | None) -> None:
        """DiskFull, with the numbers, unless what is to come fits: once, or twice where links to the folder
        of models cannot be made."""
        self.blobs.root.mkdir(parents=True, exist_ok=True)
        if missing_bytes != 0:
            require_headroom(self.blobs.root, missing_bytes, what)
        if not self._same_disk():
            require_headroom(self.models, whole_bytes, what)

    def missing_bytes(self, digest: str, size: int) -> int:
        return self.blobs.missing_bytes(digest, size)

    def _same_disk(self) -> bool:
        place = self.models
        while not place.exists() and place != place.parent:
            place = place.parent
        return place.stat().st_dev == self.blobs.root.stat().st_dev

    # What has been fetched.

    def arrived(self, op: str, revision: str) -> Mapping[str, str]:
        """Which files have come before for this operation, with digests that only it knows. What
        has no revision may be another file by now."""
        note = self._note_of_arrival(op)
        return note.digests if note is not None and revision and note.revision == revision else {}

    def _note_of_arrival(self, op: str) -> Arrived | None:
        try:
            return _ARRIVED.validate_json(self._arrival(op).read_bytes())
        except (OSError, ValidationError):
            return None

    def note_arrived(self, op: str, arrived: Arrived) -> None:
        """Best effort: without it the same is fetched again."""
        with suppress(OSError):
            self._arrivals.mkdir(parents=True, exist_ok=True)
            write_private(self._arrival(op), _ARRIVED.dump_json(arrived).decode())

    def forget_arrived(self, op: str) -> None:
        with suppress(OSError):
            self._arrival(op).unlink(missing_ok=True)

    def _arrival(self, op: str) -> Path:
        return self._arrivals / f"{op}.json"

    def stage(self, op: str, files: Sequence[ManifestFile]) -> Path:
        """A hidden folder in which the files are as they will be in the folder of models. Held by nothing:
        the caller holds the blobs."""
        folder = self._staging(op)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            for file in files:
                target = folder / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                self._link(file, target)
        except OSError as error:
            raise _trouble(error, self.models, sum(file.size for file in files)) from error
        return folder

    def _link(self, file: ManifestFile, target: Path) -> None:
        blob = self.blobs.find(file.digest)
        if blob is None:
            raise NotFound(f"the content of {file.path} has gone from this machine")
        with suppress(PermissionError):
            blob.chmod(_READ_ONLY)  # A backend that writes into a model would change it for all.
        try:
            os.link(blob, target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            shutil.copyfile(blob, target)

    def publish(self, brought: BroughtModel, staged: Path, stays: Collection[str] = ()) -> None:
        """Move staged files to where backends find them. Conflict for a different file that a person has put
        there. Files of an earlier version of the model that are not part of it any more go, but for those
        that `stays` names."""
        notes = self.brought()
        new = [file for file in brought.files if not self._is_persons_own(file, notes)]
        now = {file.path for file in new}
        own = self._note_of(brought.name)
        before = BroughtModel(brought.name, brought.op, ()) if own is None else own
        fresh = [file for file in new if not os.path.lexists(self.models / file.path)]
        # Before anything moves, so that what a killed frontend has moved is known to be the fleet's.
        self._write_note(BroughtModel(brought.name, brought.op, (*new, *before.files), before.stamps))
        try:
            for file in new:
                target = self.models / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged / file.path, target)
            for file in before.files:
                going = file.path not in now and file.path not in stays
                if going and self._is_ours(file.path, (before,)):
                    self._unlink(file.path)
        except OSError as error:
            if own is None:  # An install that fails leaves nothing, or what it left would be of no model.
                self._take_back(brought.name, fresh)
            raise _trouble(error, self.models, 0) from error
        stayed = [file for file in before.files if file.path in stays and file.path not in now]
        stamps = {path: stamp for path, stamp in before.stamps.items() if path in stays}
        stamps |= {file.path: stamp for file in new if (stamp := self._stamp(file.path)) is not None}
        self._write_note(BroughtModel(brought.name, brought.op, (*new, *stayed), stamps))
        shutil.rmtree(staged, ignore_errors=True)

    def persons_own(self, path: str) -> bool:
        """Whether something is there that the fleet has not brought, or that was changed since."""
        return os.path.lexists(self.models / path) and not self._is_ours(path, self.brought())

    def checksum(self, path: str) -> str:
        """Of a file in the folder of models; empty: it cannot be read."""
        try:
            return _sha256(self.models / path)
        except OSError:
            return ""

    def other_model(self, name: str, files: Iterable[ManifestFile]) -> tuple[str, str]:
        """One of these files where the fleet has brought another content for another model, and that model;
        empty: there is none."""
        others = {
            (file.path, file.sha256): note.name
            for note in self.brought()
            if note.name != name
            for file in note.files
        }
        paths = {path: (sha256, model) for (path, sha256), model in others.items()}
        for file in files:
            sha256, model = paths.get(file.path, (file.sha256, ""))
            if sha256 != file.sha256:
                return file.path, model
        return "", ""

    def _take_back(self, name: str, files: Iterable[ManifestFile]) -> None:
        """Best effort: what stays is still in the note, and goes when unused files are looked for."""
        with suppress(RemudaError, OSError):
            for file in files:
                if self._is_ours(file.path, (BroughtModel(name, "", (file,)),)):
                    self._unlink(file.path)
            self._note_path(name).unlink(missing_ok=True)

    def _is_persons_own(self, file: ManifestFile, notes: Sequence[BroughtModel]) -> bool:
        """Whether a person has put the very same file there, which then stays theirs."""
        target = self.models / file.path
        for parent in target.relative_to(self.models).parents:
            place = self.models / parent
            if place.exists() and not place.is_dir():
                raise Conflict(
                    f"{place} is a file, and {file.path} needs a folder of that name",
                    hint="move it away, or choose another name for the model",
                )
        if not target.exists() or self._is_ours(file.path, notes):
            return False
        if target.is_file() and target.stat().st_size == file.size and _sha256(target) == file.sha256:
            return True
        brought = any(one.path == file.path for note in notes for one in note.files)
        raise Conflict(
            f"{target} was changed by a person since it was installed"
            if brought
            else f"{target} is there already, and is not what would be installed",
            hint="move it away, or choose another name for the model",
        )

    def _is_ours(self, path: str, notes: Iterable[BroughtModel]) -> bool:
        """Whether what is there now is still what was brought, by how it looked then or by its content."""
        stamp = self._stamp(path)
        if stamp is None:
            return False
        for note in notes:
            sums = {one.sha256 for one in note.files if one.path == path and one.size == stamp.size}
            if sums and (note.stamps.get(path) == stamp or _sha256(self.models / path) in sums):
                return True
        return False

    def _stamp(self, path: str) -> Stamp | None:
        """None: there is no file. A link is none: a person has made it."""
        try:
            found = (self.models / path).lstat()
        except OSError:
            return None
        return Stamp(found.st_ino, found.st_size, found.st_mtime_ns) if S_ISREG(found.st_mode) else None

    def discard_staged(self, op: str) -> None:
        shutil.rmtree(self._staging(op), ignore_errors=True)

    def is_whole(self, files: Iterable[ManifestFile]) -> bool:
        """Whether all files are in the folder of models, by their sizes."""
        try:
            return all((self.models / file.path).stat().st_size == file.size for file in files)
        except OSError:
            return False

    # What goes again.

    def brought(self) -> list[BroughtModel]:
        return [note for path in sorted(self._notes.glob("*.json")) if (note := _read_note(path)) is not None]

    def remove(
        self, name: str, *, others_use: Collection[str] = (), keep_content: Collection[str] = ()
    ) -> Removed:
        """Remove what was brought for this model, but for paths and digests that others use: those stay in
        its note until they do not. What a person has changed is theirs."""
        note = self._note_of(name)
        if note is None:
            return Removed()
        used = tuple(file for file in note.files if file.path in others_use)
        keep = {*keep_content, *(file.digest for file in used)}
        freed, changed = 0, list[str]()
        for path in dict.fromkeys(file.path for file in note.files if file not in used):
            if self._is_ours(path, (note,)):
                self._unlink(path)
            elif os.path.lexists(self.models / path):
                changed.append(path)
        for file in note.files:
            if file.digest not in keep and self.blobs.discard(file.digest):
                freed += file.size
        if not used:
            self._note_path(name).unlink(missing_ok=True)
        elif len(used) < len(note.files):
            self._write_note(BroughtModel(name, note.op, used, note.stamps))
        return Removed(freed, tuple(dict.fromkeys(file.path for file in used)), tuple(changed))

    def remove_paths(self, paths: Iterable[str]) -> None:
        """Files that a person has put there, and wants gone."""
        for path in paths:
            self._unlink(path)

    def sweep_staging(self, at_work: Collection[str]) -> None:
        """What operations left that are over."""
        for note in self._arrivals.glob("*.json"):
            if note.stem not in at_work:
                self.forget_arrived(note.stem)
        for folder in self.models.glob(f"{_STAGING}*"):
            if folder.name.removeprefix(_STAGING) not in at_work:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep_content(self, keep: Collection[str], at_work: Collection[str], unused_since: datetime) -> None:
        """What failed or cancelled installs have left and no later one has taken up. Those `at
        work` find what had come for them, also after days."""
        notes = [note for op in at_work if (note := self._note_of_arrival(op)) is not None]
        coming = {f"sha256:{sha256}" for note in notes for sha256 in note.digests.values()}
        kept = frozenset({*keep, *self._in_models(), *coming})
        try:
            swept = self.blobs.sweep(kept, _NO_BUDGET, unused_since, partials=not at_work)
        except OSError as error:
            log.warning("unused_model_content_not_removed", reason=os_reason(error))
            return
        if swept.freed_bytes:
            log.info("unused_model_content_removed", bytes=swept.freed_bytes)

    def unused_bytes(self) -> int:
        """What has come of models that are not installed, and is not being fetched now."""
        return self.blobs.unheld_bytes(self._in_models())

    def _in_models(self) -> frozenset[str]:
        return frozenset(file.digest for note in self.brought() for file in note.files)

    def _unlink(self, path: str) -> None:
        target = self.models / path
        try:
            target.unlink(missing_ok=True)
        except NotADirectoryError:  # Where its folder was is a file now: nothing of this path is there.
            return
        except OSError as error:
            raise Misconfigured(
                f"{target} cannot be removed: {os_reason(error)}",
                hint="correct the permissions of its folder, or remove it there yourself",
            ) from error
        for parent in target.parents:
            if parent == self.models:
                return
            try:
                parent.rmdir()
            except OSError:  # It has files that are not ours.
                return

    # Notes.

    def _staging(self, op: str) -> Path:
        return self.models / f"{_STAGING}{op}"

    def _note_path(self, name: str) -> Path:
        return self._notes / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    def _note_of(self, name: str) -> BroughtModel | None:
        return _read_note(self._note_path(name))

    def _write_note(self, note: BroughtModel) -> None:
        try:
            self._notes.mkdir(parents=True, exist_ok=True)
            write_private(self._note_path(note.name), _BROUGHT.dump_json(note).decode())
        except OSError as error:
            raise _trouble(error, self._notes, 0) from error


def _read_note(path: Path) -> BroughtModel | None:
    try:
        return _BROUGHT.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("model_note_not_read", path=str(path), reason=str(error))
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _trouble(error: OSError, folder: Path, needed_bytes: int) -> RemudaError:
    if is_full(error):
        return disk_full("the model", folder, needed_bytes, free_bytes(folder))
    return Misconfigured(
        f"the model's files cannot be put into {folder}: {os_reason(error)}",
        hint="correct the folder's permissions or choose another with --models-path",
    )
