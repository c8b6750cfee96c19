"""The folder of models: what is in it, for the worker's reports, looked at in a thread now and then; and
`model.delete`, which removes a model's files and nothing outside that folder."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.errors import Invalid, NotFound, Rejected
from remuda.models.gguf_file import missing_bytes
from remuda.wire.models import ModelDelete, ModelDeleteReply
from remuda.wire.nodes import ArrivedFile, CutOffFile, ModelFile
from remuda.worker.commands import limits
from remuda.worker.files.keys import Area, is_partial_of, own_metadata
from remuda.worker.files.sidecars import is_folder, remove_file
from remuda.worker.files.tree import NotAFolder, Tree, remove_empty_folders
from remuda.worker.staging.dropping import FetchedFiles
from remuda.worker.staging.placed import PlacedFiles
from remuda.worker.staging.placing import store_root
from remuda.worker.staging.unplaced import UnplacedFiles

log = structlog.get_logger(__name__)

_UNFINISHED: Final = (".partial", ".part", ".tmp", ".download", ".incomplete")

_Facts = tuple[int, int]  # Its size, and when it changed, in nanoseconds.


@dataclass(frozen=True, slots=True)
class ListedModels:
    files: tuple[ModelFile, ...] = ()
    more: bool = False  # There are others that are not told.
    cut_off: tuple[CutOffFile, ...] = ()  # GGUF files that are shorter than their tensors.
    fetched_bytes: int = 0  # Of what this worker has fetched, on the disk.
    partial: tuple[ArrivedFile, ...] = field(default=(), compare=False)  # They grow: that is no news.


class Completeness:
    """Which GGUF files are all there. What was found out about one counts until it changes; one that grows is
    read again once it rests: until then it is only said to be incomplete."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[_Facts, _Facts, int]] = {}  # As read, as seen last, what is missing.

    def missing(self, path: Path, size: int, changed_ns: int) -> int:
        """How many bytes it lacks, at least. Blocks on the disk."""
        facts = (size, changed_ns)
        known = self._found.get(str(path))
        if known is not None:
            read, seen, missing = known
            if read == facts:
                return missing
            growing = missing > 0 and seen != facts and seen[0] <= size < read[0] + missing
            if growing:
                self._found[str(path)] = (read, facts, missing)
                return read[0] + missing - size
        missing = missing_bytes(path)
        self._found[str(path)] = (facts, facts, missing)
        if missing:
            log.warning("model_file_cut_off", path=str(path), size=size, missing=missing)
        return missing

    def forget_others(self, folder: Path, listed: ListedModels) -> None:
        """Keep what was found out about files that are still there."""
        paths = [*(one.path for one in listed.files), *(one.path for one in listed.cut_off)]
        there = {str(folder / path) for path in paths}
        self._found = {path: found for path, found in self._found.items() if path in there}


class ModelListing:
    """`changed` is called when there is something new to report. `fetched`: what is known of files that this
    worker has fetched."""

    def __init__(
        self, folder: Path, changed: Callable[[], None], fetched: FetchedFiles | None = None
    ) -> None:
        self.path = str(folder.absolute())
        self.listed = ListedModels()
        self._folder = folder
        self._changed = changed
        self._fetched = fetched
        self._completeness = Completeness()

    async def run(self) -> None:
        """Keep `listed` up to date, until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(limits.MODELS_LISTED_EVERY_S)

    async def look(self) -> None:
        try:
            listed = await run_sync(self._listed, abandon_on_cancel=True)
        except OSError as error:
            log.warning("models_not_listed", folder=self.path, error=str(error))
            return
        changed, self.listed = listed != self.listed, listed
        if changed:
            self._changed()

    def _listed(self) -> ListedModels:
        listed = list_models(self._folder, self._completeness)
        self._completeness.forget_others(self._folder, listed)
        if self._fetched is None:
            return listed
        files, fetched_bytes = self._fetched.noted(listed.files)
        partial = self._fetched.partial()[: limits.MODEL_FILES_PARTIAL_MAX]
        return replace(listed, files=files, fetched_bytes=fetched_bytes, partial=partial)


def list_models(
    folder: Path,
    completeness: Completeness | None = None,
    *,
    files_max: int = limits.MODEL_FILES_MAX,
    depth_max: int = limits.MODEL_FOLDERS_DEEP_MAX,
) -> ListedModels:
    """The files of `folder` and of what lies below it, nearest first: hidden and unfinished ones are left
    out. A folder that is not there is empty. Blocks on the disk."""
    completeness = completeness or Completeness()
    found: list[ModelFile] = []
    cut_off: list[CutOffFile] = []
    more = False
    level, looked_at = [""], 0
    for _ in range(depth_max):
        deeper: list[str] = []
        for place in level:
            for name, facts in _entries(folder / place):
                looked_at += 1
                if looked_at > limits.MODEL_ENTRIES_MAX:
                    return ListedModels(tuple(found), True, tuple(cut_off))
                path = f"{place}{name}"
                if facts is None:
                    deeper.append(f"{path}/")
                elif len(found) + len(cut_off) >= files_max:
                    more = True
                elif missing := _missing(completeness, folder / path, facts):
                    cut_off.append(CutOffFile(path=path, size=facts[0], missing=missing))
                else:
                    found.append(ModelFile(path=path, size=facts[0]))
        level = deeper
    return ListedModels(tuple(found), more or bool(level), tuple(cut_off))


def _missing(completeness: Completeness, path: Path, facts: _Facts) -> int:
    if path.suffix.lower() != ".gguf":
        return 0
    try:
        return completeness.missing(path, *facts)
    except OSError as error:  # Its load will fail with the same reason.
        log.warning("model_file_not_read", path=str(path), error=str(error))
        return 0


def _entries(folder: Path) -> Iterator[tuple[str, _Facts | None]]:
    """Names in order, with the facts of a file and None for a folder. What vanishes meanwhile is left out."""
    try:
        with os.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    hidden = own_metadata(frozenset(entry.name for entry in entries))
    for entry in entries:
        if (
            entry.name in hidden
            or entry.name.startswith(".")
            or entry.name.endswith(_UNFINISHED)
            or not _printable(entry.name)
        ):
            continue
        try:
            facts = None if entry.is_dir() else entry.stat()
        except OSError:  # It has just gone, or is a link to nothing.
            continue
        if facts is None:
            yield entry.name, None
        elif entry.is_file():
            yield entry.name, (facts.st_size, facts.st_mtime_ns)


def _printable(name: str) -> bool:
    """Reports are text: a name that is none can be neither reported nor asked for."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class ModelFiles:
    def __init__(self, models: Path) -> None:
        self._models = models

    async def delete(self, request: ModelDelete) -> ModelDeleteReply:
        """Nothing there is as good as removed. Raises Invalid for names that lead elsewhere. A frontend of
        ours says which files it means: those that a person has put there stay, unless it means them, too."""
        if request.files:
            await run_sync(self._delete_files, request.files, request.any_files)
        else:
            await run_sync(self._delete, request.model_name)
        log.info("model_files_deleted", model=request.model_name)
        return ModelDeleteReply(success=True, by_path=bool(request.files))

    def _delete_files(self, paths: Sequence[str], any_files: bool) -> None:
        parts = {path: _parts(path) for path in paths}  # A bad one is found before any goes.
        if not self._models.is_dir():
            return
        tree, placed = Tree(self._models), PlacedFiles(self._models, store_root(self._models))
        for path in paths if any_files else sorted(placed.ours(paths)):
            try:
                with tree.open_folder(parts[path][:-1]) as folder:
                    remove_file(folder, parts[path][-1])
            except (NotFound, NotAFolder):
                continue
            except OSError as error:
                raise Rejected(f"{path} cannot be removed: {error.strerror}") from error
            remove_empty_folders(tree, parts[path][:-1])
        placed.forget(paths)
        UnplacedFiles(store_root(self._models)).removed(paths)

    def _delete(self, name: str) -> None:
        """Also what was fetched from object storage for it, which lies in the cache."""
        parts = _parts(name)
        for folder in (self._models, self._models.absolute().parent / Area.CACHE / Area.MODELS):
            if not folder.is_dir():
                continue
            try:
                with Tree(folder).open_folder(parts[:-1]) as parent:
                    _remove(parent, parts[-1])
            except (NotFound, NotAFolder):
                continue
            except Invalid:  # A link on the way there is followed only within the folder.
                raise Invalid(f"model_name: {name[:100]!r} is outside the models folder") from None
            except OSError as error:
                raise Rejected(f"the files of {name} cannot be removed: {error.strerror}") from error


def _parts(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if not parts or "\0" in name or name.startswith("/") or ".." in parts:
        raise Invalid(f"model_name: {name[:100]!r} is not the name of a model")
    return parts


def _remove(folder: int, name: str) -> None:
    """The folder of that name; or the file, with what lies beside it under its name and a suffix, checksums
    and partial uploads too. Links themselves go, not their ends."""
    if is_folder(folder, name):
        shutil.rmtree(name, dir_fd=folder)
        return
    entries = set(os.listdir(folder))
    named = {name, *(entry for entry in entries if entry.startswith(f"{name}."))}
    partial = {entry for entry in entries if any(is_partial_of(entry, one) for one in named)}
    for entry in (named & entries) | partial:
        if not is_folder(folder, entry):
            with suppress(FileNotFoundError):
                os.unlink(entry, dir_fd=folder)
