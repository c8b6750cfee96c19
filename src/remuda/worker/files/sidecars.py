"""The small files beside a file, and the partial uploads of it: `NAME.sha256` holds the hash of a whole file,
`NAME.sha256.target` marks one that a LocalAI worker has not got all of. Ours arrive under hidden names.

All of it works on an open folder and follows no links, and blocks on the disk.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from remuda.worker.files import limits
from remuda.worker.files.keys import (
    HASH_SUFFIX,
    TARGET_SUFFIX,
    is_partial_of,
    is_sha256,
    partial_name,
    target_of,
)

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE: Final = 0o644


@dataclass(frozen=True, slots=True)
class FoundPartial:
    entry: str  # Its name on the disk.
    target: str
    size: int


def file_facts(folder: int, name: str) -> os.stat_result | None:
    """Of the entry itself, not of where a link leads; None: there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def kept_hash(folder: int, name: str, facts: os.stat_result) -> str:
    """What the sidecar says; empty when there is none, or the file may have changed since it was written.

    The time of the last change of the inode counts as well: a copy that keeps its time of modification is
    another file.
    """
    found = _read(folder, f"{name}{HASH_SUFFIX}")
    if found is None or found[1].st_mtime_ns < max(facts.st_mtime_ns, facts.st_ctime_ns):
        return ""
    return found[0]


def keep_hash(folder: int, name: str, digest: str) -> None:
    """Never replaces a file of that name that holds something else. Of a checksum none is kept."""
    if name.endswith(HASH_SUFFIX):
        return
    sidecar = f"{name}{HASH_SUFFIX}"
    with suppress(OSError):  # It only saves reading the file again.
        if file_facts(folder, sidecar) is not None:
            if _read(folder, sidecar) is None:
                return
            os.unlink(sidecar, dir_fd=folder)
        descriptor = os.open(sidecar, _NEW, _FILE_MODE, dir_fd=folder)
        try:
            os.write(descriptor, digest.encode())
        finally:
            os.close(descriptor)


def find_partial(folder: int, name: str) -> FoundPartial | None:
    """The newest upload of this file that is not complete, ours or a LocalAI worker's."""
    found: list[tuple[int, FoundPartial]] = []
    for entry in os.listdir(folder):
        target = target_of(entry, name)
        if target is None or (facts := file_facts(folder, entry)) is None:
            continue
        if stat.S_ISREG(facts.st_mode):
            found.append((facts.st_mtime_ns, FoundPartial(entry, target, facts.st_size)))
    if found:
        return max(found, key=lambda one: one[0])[1]
    target = foreign_target(folder, name)
    facts = file_facts(folder, name) if target else None
    if target and facts is not None and stat.S_ISREG(facts.st_mode):
        return FoundPartial(name, target, facts.st_size)
    return None


def foreign_target(folder: int, name: str) -> str:
    found = _read(folder, f"{name}{TARGET_SUFFIX}")
    return "" if found is None else found[0]


def adopt(folder: int, name: str, partial: FoundPartial, target: str) -> str:
    """Give a partial the hidden name under which it is resumed; returns that."""
    entry = partial_name(name, target)
    if partial.entry != entry:
        os.rename(partial.entry, entry, src_dir_fd=folder, dst_dir_fd=folder)
    remove_target(folder, name)
    return entry


def remove_target(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(f"{name}{TARGET_SUFFIX}", dir_fd=folder)


def remove_partials(folder: int, name: str) -> None:
    """What has arrived of this file, with the marks of it. A whole file stays."""
    for entry in os.listdir(folder):
        if target_of(entry, name) is not None:
            with suppress(FileNotFoundError):
                os.unlink(entry, dir_fd=folder)
    if foreign_target(folder, name):
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
    remove_target(folder, name)


def remove_other_partials(folder: int, name: str, kept: str) -> None:
    for entry in os.listdir(folder):
        if entry != kept and target_of(entry, name) is not None:
            with suppress(FileNotFoundError):
                os.unlink(entry, dir_fd=folder)


def _read(folder: int, sidecar: str) -> tuple[str, os.stat_result] | None:
    """None: it is not there, or does not hold a hash."""
    try:
        descriptor = os.open(sidecar, _READ, dir_fd=folder)
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > limits.SIDECAR_BYTES_MAX:
            return None
        text = os.read(descriptor, limits.SIDECAR_BYTES_MAX).decode("latin-1").strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return (text, facts) if is_sha256(text) else None


def is_folder(folder: int, name: str) -> bool:
    facts = file_facts(folder, name)
    return facts is not None and stat.S_ISDIR(facts.st_mode)


def remove_file(folder: int, name: str) -> None:
    """The file, its checksum and what came of it so far; no other with a similar name.

    The file goes last: a kill on the way leaves no checksum of nothing, which would be listed as a file that
    a person put there.
    """
    if is_folder(folder, name):
        return
    partial = [entry for entry in os.listdir(folder) if is_partial_of(entry, name)]
    for entry in (f"{name}{HASH_SUFFIX}", *partial, name):
        with suppress(FileNotFoundError):
            os.unlink(entry, dir_fd=folder)
