"""How the findings of `remuda doctor` are printed. Pure."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from remuda.cli.findings import Finding, Level
from remuda.cli.terminal_text import one_line

_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def page(found: Sequence[Finding]) -> RenderableType:
    """One finding a line, with what to do about it below, and the sum of it all at the end."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for finding in found:
        table.add_row(Text(finding.level.value, _STYLES[finding.level]), finding.check, _words(finding))
    return Group(table, Text(), Text(verdict(found)))


def verdict(found: Sequence[Finding]) -> str:
    problems, warnings = (
        sum(finding.level is level for finding in found) for level in (Level.PROBLEM, Level.WARNING)
    )
    if problems:
        return f"{_counted(problems, 'problem')} and {_counted(warnings, 'warning')}"
    return f"no problems, {_counted(warnings, 'warning')}" if warnings else "all is well"


def _words(finding: Finding) -> Text:
    text = Text(one_line(finding.message))
    if finding.level is not Level.OK and finding.remedy:
        text.append(f"\n-> {one_line(finding.remedy)}", "dim")
    return text


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
