"""The running installation as a wheel, so that a frontend can hand itself to the machines that join it.

Works alike from a checkout and from an installed wheel, and needs no build backend.
"""

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

import remuda

_EPOCH = (1980, 1, 1, 0, 0, 0)  # The earliest instant a zip file knows: the bytes tell no time.
_WHEEL = b"Wheel-Version: 1.0\nGenerator: remuda\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def own_wheel() -> tuple[str, bytes]:
    """File name and bytes of a wheel of this installation; the same files give the same bytes."""
    installed = distribution("remuda")
    files = dict(_package_files(Path(remuda.__file__).parent))
    return pack(installed.name, installed.version, files, dict(_metadata_files(installed)))


def own_wheel_name() -> str:
    """The file name of `own_wheel`, without making it."""
    installed = distribution("remuda")
    return _file_name(installed.name, installed.version)


def pack(
    name: str, version: str, files: Mapping[str, bytes], metadata: Mapping[str, bytes]
) -> tuple[str, bytes]:
    """File name and bytes of a pure-Python wheel; `metadata` are the files of its dist-info folder."""
    dist_info = f"{name}-{version}.dist-info"
    contents = dict(files) | {f"{dist_info}/{path}": content for path, content in metadata.items()}
    contents[f"{dist_info}/WHEEL"] = _WHEEL
    record = f"{dist_info}/RECORD"
    lines = [f"{path},{_digest(content)},{len(content)}\n" for path, content in sorted(contents.items())]
    contents[record] = "".join([*lines, f"{record},,\n"]).encode()

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as wheel:
        for path, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return _file_name(name, version), archive.getvalue()


def _file_name(name: str, version: str) -> str:
    return f"{name}-{version}-py3-none-any.whl"


def _package_files(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in root.rglob("*"):
        inside = path.relative_to(root)
        left_out = any(part == "__pycache__" or part.startswith(".") for part in inside.parts)
        if path.is_file() and not left_out:
            yield f"{root.name}/{inside.as_posix()}", path.read_bytes()


def _metadata_files(installed: Distribution) -> Iterator[tuple[str, bytes]]:
    """What the wheel says about itself. The rest of dist-info is about this machine's installation only."""
    for path in installed.files or ():
        folder, *inside = path.parts
        kept = inside in (["METADATA"], ["entry_points.txt"]) or inside[:1] == ["licenses"]
        if folder.endswith(".dist-info") and kept:
            yield "/".join(inside), path.read_binary()


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
