"""The folders of the worker that hold files: models, and beside it data, staging and cache, as LocalAI's
workers have them; and what is in them under a key."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remuda.core.errors import Invalid, NotFound, Unavailable
from remuda.worker.files import limits
from remuda.worker.files.hashes import Hashes, WholeFile
from remuda.worker.files.keys import HASH_SUFFIX, Area, FilePlace
from remuda.worker.files.sidecars import (
    FoundPartial,
    file_facts,
    find_partial,
    foreign_target,
    remove_partials,
)
from remuda.worker.files.tree import Tree

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE: Final = 0o640


@dataclass(frozen=True, slots=True)
class FoundFile:
    """Under one key: a partial upload, a whole file, or while one replaces the other both."""

    partial: FoundPartial | None
    whole: WholeFile | None


class FileAreas:
    def __init__(self, models: Path) -> None:
        beside = models.absolute().parent
        self.trees = {
            area: Tree(models if area is Area.MODELS else beside / area.value)
            for area in (Area.MODELS, Area.DATA, Area.STAGING, Area.CACHE)
        }

    def tree(self, place: FilePlace) -> Tree:
        return self.trees[place.area]

    def local_path(self, place: FilePlace) -> str:
        return self.tree(place).local_path(place.parts)

    def make(self, area: Area) -> Tree:
        """The folder, made where it is missing. Invalid when that cannot be. Blocks on the disk."""
        tree = self.trees[area]
        try:
            tree.path.mkdir(mode=0o750, exist_ok=True)
        except OSError as error:
            raise Invalid(f"the folder {tree.path} cannot be made: {error.strerror}") from error
        return tree

    def find(self, place: FilePlace, hashes: Hashes) -> FoundFile:
        """NotFound when there is nothing. Blocks on the disk."""
        tree = self.tree(place)
        with tree.open_folder(place.parts[:-1]) as folder:
            found = find_in(tree, folder, place, hashes)
        if found.partial is None and found.whole is None:
            raise NotFound("not found")
        return found

    def refuse_checksum(self, place: FilePlace) -> None:
        """Invalid for the name of the checksum that is kept beside a file which is here: who writes there
        would say what is in the other. Blocks on the disk."""
        of = place.name.removesuffix(HASH_SUFFIX)
        if of in (place.name, ""):
            return
        with suppress(NotFound), self.tree(place).open_folder(place.parts[:-1]) as folder:
            facts = file_facts(folder, of)
            if facts is not None and stat.S_ISREG(facts.st_mode):
                raise Invalid(
                    f"invalid path: {place.name} is where this worker keeps the checksum of {of}",
                    hint="send the file alone; its checksum goes into the header X-Content-SHA256",
                )

    def temporary(self, area: Area, folder: tuple[str, ...], name: str) -> str:
        """Make an empty file; returns its path. Blocks on the disk."""
        tree = self.make(area)
        with tree.open_folder(folder, make=True) as opened:
            if len(os.listdir(opened)) >= limits.TEMPORARY_FILES_MAX:
                raise Unavailable(f"{tree.local_path(folder)} holds too many files")
            os.close(os.open(name, _NEW, _FILE_MODE, dir_fd=opened))
        return tree.local_path((*folder, name))

    def remove(self, place: FilePlace) -> int:
        """Remove a file of a request, with what has arrived of it and the folder made for it; how many bytes
        it had. NotFound when there is none. Blocks on the disk."""
        tree = self.tree(place)
        with tree.open_folder(place.parts[:-1]) as folder:
            facts = file_facts(folder, place.name)
            if facts is not None and not stat.S_ISREG(facts.st_mode):
                raise Invalid("not a regular file")
            partial = find_partial(folder, place.name)
            remove_partials(folder, place.name)
            for name in (place.name, f"{place.name}{HASH_SUFFIX}"):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        if len(place.parts) > 2:  # Its own folder, unless something else is in it.
            with suppress(OSError), tree.open_folder(place.parts[:-2]) as above:
                os.rmdir(place.parts[-2], dir_fd=above)
        if facts is None and partial is None:
            raise NotFound("not found")
        return (facts.st_size if facts is not None else 0) + (partial.size if partial is not None else 0)


def find_in(tree: Tree, folder: int, place: FilePlace, hashes: Hashes) -> FoundFile:
    """`folder` is the one that holds the place. Invalid for what is no file."""
    partial = find_partial(folder, place.name)
    facts = file_facts(folder, place.name)
    if facts is not None and stat.S_ISDIR(facts.st_mode):
        raise Invalid("is a directory")
    if facts is None or (partial is not None and foreign_target(folder, place.name)):
        return FoundFile(partial, None)
    try:
        return FoundFile(partial, hashes.look(tree, place.parts))
    except NotFound:  # It has just gone, or is a link to nothing.
        return FoundFile(partial, None)
