"""The list of nodes, for people."""

from datetime import UTC, datetime
from io import StringIO

from rich.console import Console

from remuda.cli.node_tables import node_list
from remuda.cli.render import show


def test_where_no_node_is_yet_the_one_of_this_machine_is_said_to_come() -> None:
    output = Console(file=StringIO(), width=120)
    show(output, node_list([], datetime(2026, 6, 1, tzinfo=UTC), output))
    assert isinstance(output.file, StringIO)
    text = output.file.getvalue()
    assert text.index("`remuda up` comes in seconds") < text.index("`remuda join`")
