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
D1_NOT_HERE = {5, 9, *range(11, 15), 16, 19, *range(23, 26), 27, 29, 30, 33, 40, 41}
D1 = [number for number in range(1, 46) if number not in D1_NOT_HERE]
D2 = (*range(2, 11), *range(12, 16), 17, 18)
STATES = {
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
}
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
        *(f"A{number:03}" for number in (*range(1, 156), *range(160, 172))),
        *(f"D1-{number}" for number in D1),
        *(f"D2-{number:02}" for number in D2),
        "B0",
        *OURS,
        *(f"{machine} {state}" for machine, states in STATES.items() for state in states),
    ]
)
_SPAN = re.compile(r"A(\d{3}) - A(\d{3})")
_NAMED = re.compile(r"`([\w/]*\.py)?(?:::(test_\w+))?`")


@dataclass(frozen=True, slots=True)
class Line:
    rows: tuple[str, ...]
    tests: tuple[tuple[str, str], ...]  # File and name; without a name the whole file is meant.
    later: bool


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
        yield Line(tuple(_rows(first)), tuple(_tests(last)), heading == LATER)


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


def test_a_row_is_proven_or_not_yet_and_stands_in_one_place() -> None:
    counts = Counter(row for line in lines() for row in line.rows if row in WANTED)
    assert [row for row, count in counts.items() if count > 1] == []


def test_every_row_names_its_tests_unless_it_is_not_yet() -> None:
    assert [line.rows for line in lines() if bool(line.tests) == line.later] == []


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
