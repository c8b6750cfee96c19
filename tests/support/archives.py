"""Archives built in code, and trees described so that two can be compared."""

import os
import stat
import tarfile
from io import BytesIO
from pathlib import Path

from remuda.oci.unpack import LayerSource, UnpackLimits, unpack_image

Member = tuple[tarfile.TarInfo, bytes]
MTIME = 1_600_000_000


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"", mode: int = 0o644
) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode, info.mtime = kind, link, len(data), mode, MTIME
    return info, data


def symlink(name: str, target: str) -> Member:
    return member(name, tarfile.SYMTYPE, target)


def hardlink(name: str, target: str) -> Member:
    return member(name, tarfile.LNKTYPE, target)


def folder(name: str, mode: int = 0o755) -> Member:
    return member(name, tarfile.DIRTYPE, mode=mode)


def packed(*members: Member, form: int = tarfile.GNU_FORMAT) -> bytes:
    """A plain tar archive of these."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, data in members:
            archive.addfile(info, BytesIO(data))
    return buffer.getvalue()


def unpack(target: Path, *layers: bytes | LayerSource, limits: UnpackLimits | None = None) -> None:
    sources = [BytesIO(layer) if isinstance(layer, bytes) else layer for layer in layers]
    unpack_image(sources, target, limits or UnpackLimits(), lambda _: None, lambda: False)


def listing(root: Path) -> list[str]:
    """Every path below, folders with a slash, sorted."""
    found = []
    for base, folders, files in os.walk(root):
        below = os.path.relpath(base, root)
        found += [os.path.normpath(os.path.join(below, name)) for name in files]
        found += [os.path.normpath(os.path.join(below, name)) + "/" for name in folders]
    return sorted(found)


def described(root: Path, times: bool = True) -> dict[str, tuple[str, ...]]:
    """Each path's kind, permissions, time, content or target, and the first other name of the same file."""
    found: dict[str, tuple[str, ...]] = {}
    first_names: dict[int, str] = {}
    for path in sorted(root.rglob("*")):
        about, name = path.lstat(), str(path.relative_to(root))
        mode = "" if path.is_symlink() else oct(stat.S_IMODE(about.st_mode) & 0o777)
        mtime = str(about.st_mtime_ns // 1_000_000_000) if times else ""
        if path.is_symlink():
            found[name] = "link", mode, mtime, os.readlink(path)
        elif path.is_dir():
            found[name] = "folder", mode, mtime
        else:
            shared = first_names.setdefault(about.st_ino, name)
            found[name] = "file", mode, mtime, path.read_bytes().hex(), shared
    return found
