"""Numbers, spans and tables for people."""

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from rich.console import Console

from remuda.cli.output import one_line
from remuda.cli.render import Column, ago, fitting, gib, part_of, show, span

NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 GiB"), (1 << 29, "0.5 GiB"), (80 << 30, "80.0 GiB"), (2048 << 30, "2048 GiB")]
)
def test_bytes_are_shown_as_gib(size: int, text: str) -> None:
    assert gib(size) == text


@pytest.mark.parametrize(
    ("used", "total", "text"),
    [(20, 80, "20.0/80.0 GiB"), (0, 0, "-"), (-1, 80, "0/80.0 GiB"), (5, 200, "5.0/200 GiB")],
)
def test_a_share_is_unknown_without_a_total(used: int, total: int, text: str) -> None:
    assert part_of(used << 30 if used > 0 else used, total << 30) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (-3, "0s"), (59, "59s"), (125, "2m 5s"), (3600, "1h"), (90_061, "1d 1h")]
)
def test_a_span_is_told_by_its_two_largest_parts(seconds: int, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_an_instant_that_never_was_is_unknown() -> None:
    assert ago(datetime(1, 1, 1, tzinfo=UTC), NOON) == "-"
    assert ago(NOON - timedelta(seconds=5), NOON) == "5s ago"


def shown(width: int, *columns: Column) -> str:
    output = Console(file=StringIO(), width=width, markup=False)
    show(output, fitting(columns, output))
    assert isinstance(output.file, StringIO)
    return output.file.getvalue()


NAME = Column("NAME", ["attic", "cellar"])
NOTES = Column("NOTES", ["x" * 20, "y"], needed=1)
LEAST = Column("LEAST", ["z" * 20, "w"], needed=2)


def test_a_table_keeps_all_columns_where_there_is_room() -> None:
    assert shown(80, NAME, NOTES, LEAST).splitlines()[0].split() == ["NAME", "NOTES", "LEAST"]


def test_a_narrow_table_loses_the_least_needed_columns_first() -> None:
    assert shown(35, NAME, NOTES, LEAST).splitlines()[0].split() == ["NAME", "NOTES"]
    assert shown(10, NAME, NOTES, LEAST).splitlines()[0].split() == ["NAME"]


def test_no_line_ends_in_blanks() -> None:
    assert all(line == line.rstrip() for line in shown(80, NAME, NOTES).splitlines())


def test_escapes_from_peers_do_not_reach_the_terminal() -> None:
    text = shown(80, Column("NAME", ["a\x1b[31mb\nc[bold]"]))

    assert text.splitlines()[1] == "a [31mb c[bold]"


def test_a_line_break_and_its_indentation_become_one_space() -> None:
    assert one_line("its last lines:\n  boom\n  bang") == "its last lines: boom bang"
