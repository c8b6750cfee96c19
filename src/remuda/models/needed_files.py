"""The files that a load needs, exactly: those of the model's manifest, or else those that its configuration
names and that are in the folder of models on this machine. Blocks on the disk.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from remuda.models.config import ModelConfig
from remuda.models.files import FILES_MAX, Manifest, NeededFile, path_fault
from remuda.models.gguf import all_parts
from remuda.models.paths import named_files

_COMPANIONS: Final = {".onnx": (".onnx.json",)}  # What belongs to a file, by its suffix.
_CHECKSUM: Final = ".sha256"
_DEPTH_MAX: Final = 16


def needed_files(folder: Path, config: ModelConfig, manifest: Manifest | None) -> tuple[NeededFile, ...]:
    """In the order of their paths. Empty where the model's own file is not known here: what it needs then,
    only those can tell who have it."""
    found = {file.path: file for file in _of_manifest(folder, manifest)}
    if not found and not _exists(folder, config.file):
        return ()
    for path in _named(folder, config):
        for part in _expanded(folder, path):
            size = _size(folder / part)
            if size is not None and len(found) < FILES_MAX:
                found.setdefault(part, NeededFile(part, size))
    return tuple(sorted(found.values(), key=lambda file: file.path))


def _of_manifest(folder: Path, manifest: Manifest | None) -> Iterator[NeededFile]:
    for file in () if manifest is None else manifest.files:
        here = _size(folder / file.path) == file.size
        yield NeededFile(file.path, file.size, file.sha256, here, file.origin)


def _named(folder: Path, config: ModelConfig) -> Iterator[str]:
    """Relative paths of what is there, by what the configuration names, as backends resolve it: below the
    folder of models, or beside the model."""
    beside = config.file.lstrip("/").rpartition("/")[0]
    downloads = (file.filename for file in config.download_files)
    for name in dict.fromkeys((*named_files(config), *downloads)):
        path = _relative(folder, name)
        for place in (path, f"{beside}/{path}" if beside else path):
            if _exists(folder, place):
                yield place
                break


def _relative(folder: Path, name: str) -> str:
    return name.removeprefix(f"{folder}/").lstrip("/")


def _exists(folder: Path, path: str) -> bool:
    """A path that could lead elsewhere names nothing."""
    return not path_fault(path.lstrip("/")) and (folder / path.lstrip("/")).exists()


def _expanded(folder: Path, path: str) -> Iterator[str]:
    path = path.lstrip("/")
    if (folder / path).is_dir():
        yield from _below(folder, path, _DEPTH_MAX)
        return
    yield from all_parts(path)
    for suffix, companions in _COMPANIONS.items():
        if path.endswith(suffix):
            yield from (path.removesuffix(suffix) + companion for companion in companions)


def _below(folder: Path, path: str, depth: int) -> Iterator[str]:
    """Every file at any depth, but for hidden ones and checksums of others."""
    try:
        with os.scandir(folder / path) as scanned:
            entries = {entry.name: entry.is_dir() for entry in scanned if not entry.name.startswith(".")}
    except OSError:
        return
    for name, is_folder in sorted(entries.items()):
        below = f"{path}/{name}"
        if path_fault(below) or (name.endswith(_CHECKSUM) and name.removesuffix(_CHECKSUM) in entries):
            continue
        if not is_folder:
            yield below
        elif depth > 1:
            yield from _below(folder, below, depth - 1)


def _size(path: Path) -> int | None:
    with suppress(OSError):
        if path.is_file():
            return path.stat().st_size
    return None
