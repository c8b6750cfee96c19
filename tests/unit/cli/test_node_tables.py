"""The list of nodes, for people."""

from datetime import UTC, datetime, timedelta
from io import StringIO

from rich.console import Console

from remuda.cli.node_tables import node_list, node_page
from remuda.cli.nodes import models_served
from remuda.cli.render import show
from remuda.wire.node_facts import NodeMemory
from remuda.wire.nodes import NodeFacts, NodeView
from remuda.wire.serving import ReplicaView


def test_where_no_node_is_yet_it_is_told_how_to_add_one() -> None:
    output = Console(file=StringIO(), width=120)
    show(output, node_list([], datetime(2026, 6, 1, tzinfo=UTC), output))
    assert isinstance(output.file, StringIO)
    text = output.file.getvalue()
    assert text.startswith(
        "no nodes yet: to add a machine, run the command there that `remuda join-line` prints"
    )


def test_node_that_is_heard_and_cannot_be_reached_is_not_shown_as_healthy() -> None:
    facts = NodeFacts(unreachable=True, reasons=("port closed",))
    node = NodeView(id="a", name="a", status="healthy", remuda=facts)
    output = Console(file=StringIO(), width=120)
    show(output, node_list([node], datetime(2026, 6, 1, tzinfo=UTC), output))
    assert isinstance(output.file, StringIO)
    lines = output.file.getvalue().splitlines()
    assert lines[1].split()[:2] == ["a", "unreachable"]
    assert "a: port closed" in lines


def test_status_of_a_node_whose_heartbeat_is_overdue_has_its_age() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    output = Console(file=StringIO(), width=160)
    nodes = [
        NodeView(id=name, name=name, status="healthy", last_heartbeat=now - timedelta(seconds=heard_s))
        for name, heard_s in (("a", 5), ("b", 14))
    ]
    show(output, node_list(nodes, now, output))
    assert isinstance(output.file, StringIO)
    [_, fresh, overdue] = output.file.getvalue().splitlines()
    assert "last heard" not in fresh
    assert "healthy, last heard 14s ago" in overdue


def test_what_is_free_is_what_a_model_would_be_given() -> None:
    facts = NodeFacts(memory=NodeMemory(free_ram=3 << 30, set_aside_ram=5 << 30))
    node = NodeView(id="a", name="a", total_ram=8 << 30, available_ram=8 << 30, remuda=facts)
    output = Console(file=StringIO(), width=120)
    show(output, node_page(node, (), datetime(2026, 6, 1, tzinfo=UTC), output))
    assert isinstance(output.file, StringIO)
    lines = [" ".join(line.split()) for line in output.file.getvalue().splitlines()]
    assert "RAM free 3.0/8.0 GiB" in lines
    assert "Set aside for models 5.0 GiB of RAM" in lines


def test_the_models_of_a_node_that_is_to_be_removed_are_named() -> None:
    nodes = [NodeView(id=name, name=name, status="healthy") for name in ("attic", "cellar")]
    replicas = [ReplicaView(model=model, node_id="attic") for model in ("qwen", "llama", "qwen")]
    assert models_served(nodes, replicas) == ["attic serves llama, qwen"]
