"""The behaviour page leaves no row out, every test that it names exists, and so does all that is broken to
show that those tests notice."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tools.mutate import Mutation, mutations

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "behaviour.md"
LATER = "Not yet"
REPLACED = "Replaced"
STATES = {
    "B1": (
        "register",
        "pending",
        "approve",
        "re-register",
        "silence",
        "no responders",
        "heartbeat",
        "drain",
        "resume",
        "deregister",
        "delete",
    ),
    "B2": ("enqueue", "again", "dead letter", "away", "removed"),
    "B3": (
        "admitted",
        "done",
        "soft done",
        "failed",
        "cancelled",
        "paused",
        "duplicate",
        "never begun",
        "owner died",
    ),
    "B4": ("staging", "loading", "loaded", "unloading", "removed", "liveness", "strays"),
    "B5": (
        "claim",
        "second claim",
        "owner died",
        "stages",
        "done",
        "failed",
        "grace",
        "no store",
        "wait over",
    ),
    "C1": ("key", "revision", "selector", "warm", "probe", "cold"),
    "C2": ("candidates", "order", "together", "preferred"),
    "C3": ("once", "methods", "leaks", "reaping", "not loaded"),
    "C6": ("key", "waiter"),
    "C7": ("detached", "base", "moving", "given up"),
    "C11": ("disk", "files"),
}
WHOLE = ("B0", "B6", "C4", "C5", "C8", "C9", "C10", "C12", "C13", "C14")
OURS = (
    "retry",
    "leaving",
    "waiting",
    "keys",
    "HTTP backends",
    "templates",
    "list of models",
    "readiness",
    "two-phase stop",
)
WANTED = frozenset(
    [
        *(f"A{number:03}" for number in range(1, 175)),
        *(f"D1-{number}" for number in range(1, 47)),
        *(f"D2-{number:02}" for number in range(1, 19)),
        *WHOLE,
        *OURS,
        *(f"{machine} {state}" for machine, states in STATES.items() for state in states),
    ]
)
_SPAN = re.compile(r"A(\d{3}) - A(\d{3})")
_LINK = re.compile(r"\]\(([^)]+)\)")
_NAMED = re.compile(r"`([\w/]*\.py)?(?:::(test_\w+))?`")


@dataclass(frozen=True, slots=True)
class Line:
    rows: tuple[str, ...]
    tests: tuple[tuple[str, str], ...]  # File and name; without a name the whole file is meant.
    heading: str
    last: str

    @property
    def proven(self) -> bool:
        return self.heading not in (LATER, REPLACED)


@cache
def lines() -> tuple[Line, ...]:
    return tuple(_lines(PAGE.read_text()))


def _lines(text: str) -> Iterator[Line]:
    heading = ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        if not line.startswith("| ") or line.startswith("| row |"):
            continue
        _, first, _, last, _ = re.split(r"\s*\|\s*", line)
        yield Line(tuple(_rows(first)), tuple(_tests(last)), heading, last)


def _rows(cell: str) -> Iterator[str]:
    for part in cell.split(", "):
        if span := _SPAN.fullmatch(part):
            yield from (f"A{number:03}" for number in range(int(span[1]), int(span[2]) + 1))
        else:
            yield part


def _tests(cell: str) -> Iterator[tuple[str, str]]:
    """A name without a file is in the file before it."""
    file = ""
    for found in _NAMED.finditer(cell):
        file = found[1] or file
        yield file, found[2] or ""


@cache
def defined_in(file: str) -> frozenset[str]:
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_no_row_is_left_out() -> None:
    shown = {row for line in lines() for row in line.rows}
    assert sorted(WANTED - shown) == []


def test_a_row_is_proven_replaced_or_not_yet_and_stands_in_one_place() -> None:
    counts = Counter(row for line in lines() for row in line.rows if row in WANTED)
    assert [row for row, count in counts.items() if count > 1] == []


def test_every_row_names_its_tests_unless_it_is_replaced_or_not_yet() -> None:
    assert [line.rows for line in lines() if bool(line.tests) != line.proven] == []


def test_what_replaces_a_row_is_a_page_that_exists() -> None:
    replaced = [line for line in lines() if line.heading == REPLACED]
    pages = [link for line in replaced for link in _LINK.findall(line.last)]
    assert len(pages) == len(replaced) > 0
    assert [page for page in pages if not (PAGE.parent / page).is_file()] == []


def test_every_named_test_exists() -> None:
    named = {test for line in lines() for test in line.tests}
    missing = [test for test in sorted(named) if test[1] not in defined_in(test[0]) and test[1]]
    gone = [file for file, _ in sorted(named) if not (ROOT / "tests" / file).is_file()]
    assert (missing, gone) == ([], [])


@pytest.mark.parametrize("mutation", mutations(), ids=lambda one: one.breaks)
def test_what_a_mutation_breaks_is_there_and_its_test_is_named_for_the_row(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    named = {
        f"tests/{file}::{name}"
        for line in lines()
        for file, name in line.tests
        if any(row == mutation.row or row.startswith(f"{mutation.row} ") for row in line.rows)
    }
    assert [test for test in sorted(named) if test.startswith(mutation.test)] != []
