"""The page of subjects is honest about those that nobody here publishes or hears."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from remuda.wire import subjects

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "subjects.md").read_text()
GRANTED = {
    "node_all",
    "files_all",
    "install_progress_all",
    "replies_of",
}  # They say what a worker's key is for.


def spelt() -> Iterator[tuple[str, str]]:
    for name, value in vars(subjects).items():
        if name.startswith("_") or name == "token":
            continue
        if inspect.isfunction(value) and inspect.signature(value).return_annotation is str:
            yield name, value(*(f"{{{parameter}}}" for parameter in inspect.signature(value).parameters))
        elif name.isupper() and isinstance(value, str) and "." in value:
            yield name, value


def named_in_the_program() -> set[str]:
    files = (file for file in (ROOT / "src").rglob("*.py") if file.name != "subjects.py")
    return {word for file in files for word in re.findall(r"\w+", file.read_text())}


def test_exactly_those_are_reserved_that_nobody_publishes_or_hears() -> None:
    used, reserved = named_in_the_program() | GRANTED, PAGE.partition("## Reserved")[2]
    shown = {subject for subject in re.findall(r"^\| `([^`]+)`", reserved, re.MULTILINE)}
    assert shown == {subject for name, subject in spelt() if name not in used}
