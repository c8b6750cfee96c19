"""How things look to people: numbers, spans, and tables that fit the terminal."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from remuda.cli.output import one_line

GIB: Final = 1 << 30
UNKNOWN: Final = "-"
_WIDE: Final = 400  # Without a terminal, each row is one line.
_STEPS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def console() -> Console:
    """For standard output. Colours and line breaks are for terminals; pipes get plain, unbroken rows."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(width=width, highlight=False, markup=False, emoji=False)


def show(output: Console, content: RenderableType) -> None:
    """Print without the blanks with which tables fill their lines."""
    with output.capture() as captured:
        output.print(content)
    output.file.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def gib(size: int) -> str:
    """Bytes as GiB: one digit after the point while it tells something."""
    amount = size / GIB
    return f"{amount:.1f} GiB" if 0 < amount < 100 else f"{amount:.0f} GiB"


def part_of(part: int, total: int) -> str:
    """`3.2/80.0 GiB`; unknown when there is no total."""
    if total <= 0:
        return UNKNOWN
    return f"{gib(max(0, part)).removesuffix(' GiB')}/{gib(total)}"


def span(length: timedelta) -> str:
    """A length of time by its two largest parts, such as 2m 5s."""
    left = max(0, int(length.total_seconds()))
    parts: list[str] = []
    for seconds, unit in _STEPS:
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def ago(instant: datetime, now: datetime) -> str:
    """How long ago; a peer that never was heard has no instant worth telling."""
    return UNKNOWN if instant.year <= 1 else f"{span(now - instant)} ago"


def local(instant: datetime) -> str:
    return UNKNOWN if instant.year <= 1 else instant.astimezone().strftime("%Y-%m-%d %H:%M:%S")


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    cells: Sequence[str | Text]
    needed: int = 0  # When room is short, the columns with the highest number go first; 0 stays.
    right: bool = False


def fitting(columns: Sequence[Column], output: Console) -> Table:
    """A table of these columns, without those least needed as far as the terminal is too narrow for all."""
    kept = list(columns)
    while output.measure(table_of(kept), options=output.options.update(width=_WIDE)).maximum > output.width:
        least = max(kept, key=lambda column: column.needed)
        if least.needed == 0:
            break
        kept.remove(least)
    return table_of(kept)


def table_of(columns: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(one_line(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def facts(pairs: Sequence[tuple[str, RenderableType]]) -> Table:
    """Names and values, one pair a line."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, one_line(value) if isinstance(value, str) else value)
    return table
