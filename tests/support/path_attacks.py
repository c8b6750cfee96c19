"""Keys that try to leave the folder they belong to, for every way by which a worker is given one.

The names of folders are those of `hostile_tree`: `secret` holds what nobody may read or write.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

SECRET = b"nobody may read this"


@dataclass(frozen=True, slots=True)
class HostileTree:
    """A worker's folders with links in them that lead outside."""

    root: Path

    @property
    def outside(self) -> Path:
        return self.root.parent / "outside"

    def untouched(self) -> bool:
        """Nothing outside was written, and nothing was made beside the worker's folders."""
        beside = {path.name for path in self.root.iterdir()} - {"models", "data", "staging", "cache", "logs"}
        found = {str(path.relative_to(self.outside)) for path in self.outside.rglob("*")}
        kept = (self.outside / "secret").read_bytes() == SECRET
        return not beside and found == {"secret", "folder", "folder/secret"} and kept


def hostile_tree(root: Path) -> HostileTree:
    tree = HostileTree(root)
    (tree.outside / "folder").mkdir(parents=True, exist_ok=True)
    for secret in ("secret", "folder/secret"):
        (tree.outside / secret).write_bytes(SECRET)
    for area in ("models", "data", "staging", "cache"):
        folder = root / area
        folder.mkdir(parents=True, exist_ok=True)
        links = {
            "out": str(tree.outside),
            "relative": "../../outside",
            "file": str(tree.outside / "secret"),
            "up": "..",
            "loop": "loop",
            "prefix": f"{folder}-evil",
            "chain": "relative/folder",
        }
        for name, target in links.items():
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(target)
    return tree


# As a key is meant, after the prefix of its area.
ATTACKS: dict[str, str] = {
    "parent": "../outside/secret",
    "parents": "../../outside/secret",
    "parent in the middle": "a/../../../outside/secret",
    "parent that stays inside": "a/../b",
    "parent at the end": "a/..",
    "dot": "./a",
    "absolute": "/etc/passwd",
    "double slash": "a//b",
    "escaped once more": "%2e%2e/outside/secret",
    "escaped slashes": "..%2f..%2foutside%2fsecret",
    "escaped twice more": "%252e%252e%252foutside%252fsecret",
    "half escaped": ".%2e/outside/secret",
    "escaped NUL": "a%00b",
    "NUL": "a\0b",
    "line feed": "a\nX-Header: b",
    "carriage return": "a\r\n\r\nb",
    "backslashes": "..\\..\\outside\\secret",
    "drive": "C:/outside/secret",
    "drive with backslashes": "C:\\outside\\secret",
    "place on a drive": "a:b",
    "place on a drive, below a folder": "a/c:secret",
    "fullwidth drive": "\uff23\uff1asecret",
    "drive behind an invisible character": "\u200bC:secret",
    "share": "\\\\server\\share",
    "device path": "\\\\?\\C:\\secret",
    "dots and a space": ".. /outside/secret",
    "three dots": ".../secret",
    "fullwidth dots": "\uff0e\uff0e/outside/secret",
    "two dot leader": "\u2025/outside/secret",
    "fullwidth slash": "..\uff0foutside\uff0fsecret",
    "division slash": "..\u2215outside\u2215secret",
    "fraction slash": "..\u2044outside",
    "fullwidth backslash": "..\uff3coutside",
    "zero-width between dots": ".\u200b./outside/secret",
    "joiner between dots": ".\u200d./outside/secret",
    "right-to-left between dots": ".\u202e./outside/secret",
    "very long name": "a" * 300,
    "very long path": "/".join(["abcdefgh"] * 400),
    "very deep": "/".join(["a"] * 100),
    "link to a folder outside": "out/secret",
    "new file behind a link": "out/new",
    "relative link": "relative/secret",
    "link to a file": "file",
    "link upwards": "up/../outside/secret",
    "link upwards, inside another area": "up/up/up/outside/secret",
    "link to itself": "loop",
    "link to a folder with the same beginning": "prefix/secret",
    "link over a link": "chain/secret",
    "name of a partial upload": f".upload-{'0' * 16}-{'0' * 64}.partial",
    "mark of a partial upload": "a.sha256.target",
}
# Names with these may be replaced by a file: it is the link that goes, not what it leads to.
REPLACED = frozenset({"link to a file", "link to itself"})


class SwapsAt:
    """Replaces a folder by a link that leads outside, just before one of the calls that open something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, outside: Path) -> None:
        self.calls = 0
        self.swap_before = -1
        self._folder = folder
        self._outside = outside
        for name in ("open", "stat", "rename", "listdir", "mkdir", "unlink", "readlink"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def arm(self, call: int) -> None:
        if self._folder.is_symlink():
            self._folder.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._folder.with_name("aside"), ignore_errors=True)
        self._folder.mkdir()
        (self._folder / "secret").write_bytes(b"harmless")
        self.calls, self.swap_before = 0, call

    def _counted(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            if "dir_fd" in named or "src_dir_fd" in named:
                if self.calls == self.swap_before:
                    self.swap_before = -1
                    self._folder.rename(self._folder.with_name("aside"))
                    self._folder.symlink_to(self._outside)
                self.calls += 1
            return real(*args, **named)

        return call
