"""The commands that README and guides tell people to type."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md")))
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:\./)?remuda (?!\.\.\.)[^`]+|[^`]*python -m bench[^`]*)`")
_PROGRAMS = ("remuda ", "./remuda ", "uv ", "curl ", "export ", "ln ")


@dataclass(frozen=True, slots=True)
class Documented:
    page: str
    command: str  # On one line, without the prompt and what is said of it.

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)


def typed_in(page: Path) -> list[Documented]:
    """Whatever stands in blocks, in order."""
    text = page.read_text()
    return [
        Documented(page.name, command)
        for indent, kind, block in _BLOCK.findall(text)
        if kind in ("console", "sh", "")
        for command in _commands([line.removeprefix(indent) for line in block.splitlines()], kind)
    ]


def named_in(page: Path) -> list[Documented]:
    """Those in running text too, which may leave out what matters not."""
    inline = [Documented(page.name, " ".join(found.split())) for found in _INLINE.findall(page.read_text())]
    return typed_in(page) + inline


def _commands(lines: list[str], kind: str) -> list[str]:
    """With prompts: what stands after one, to the end of its quotes. Else lines that begin with a program."""
    found: list[str] = []
    for line in lines:
        if found and not _whole(found[-1]):
            found[-1] += f"\n{line}"
        elif line.startswith("$ "):
            found.append(_without_comment(line.removeprefix("$ ")))
        elif kind != "console" and line.startswith(_PROGRAMS):
            found.append(_without_comment(line))
    return found


def _without_comment(line: str) -> str:
    return re.sub(r"\s+# .*", "", line).rstrip()


def _whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True
