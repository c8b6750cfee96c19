"""Which logs a name stands for."""

import pytest

from remuda.cli.client import TIMEOUT_S
from remuda.cli.logs import WAIT_S, LogSource, as_json_line, by_time, has_left, matching
from remuda.core import limits
from remuda.wire.logs import LogLine
from remuda.wire.nodes import NodeFacts, NodeView
from remuda.wire.serving import ModelItem, ReplicaView

THERE = [LogSource("n1", "attic", "qwen"), LogSource("n1", "attic", "bge"), LogSource("n2", "cellar", "qwen")]
REPLICAS = [
    ReplicaView(model="qwen", node_id="n1", backend="llama-cpp"),
    ReplicaView(model="bge", node_id="n1", backend="embeddings"),
    ReplicaView(model="qwen", node_id="n2", backend="llama-cpp"),
]


@pytest.mark.parametrize(
    ("what", "found"),
    [("qwen", [0, 2]), ("bge", [1]), ("llama-cpp", [0, 2]), ("embeddings", [1]), ("qw", []), ("", [])],
)
def test_a_model_or_a_backend_names_its_logs_on_every_node(what: str, found: list[int]) -> None:
    assert matching(what, THERE, REPLICAS) == [THERE[index] for index in found]


@pytest.mark.parametrize(("approximate", "shown"), [(False, "2026-01-31T12:00:00Z"), (True, None)])
def test_a_line_shows_no_time_when_it_is_not_known_exactly(approximate: bool, shown: str | None) -> None:
    line = LogLine(timestamp="2026-01-31T12:00:00Z", text="loading", approximate=approximate)

    assert as_json_line(THERE[0], line)["timestamp"] == shown


def test_the_frontend_has_time_to_say_which_node_does_not_answer() -> None:
    assert WAIT_S > limits.NODE_LOGS_S
    assert WAIT_S > TIMEOUT_S


def test_a_backend_names_the_logs_of_models_that_it_does_not_serve_any_more() -> None:
    models = [ModelItem(name="qwen", backend="bad"), ModelItem(name="other", backend="")]
    assert matching("bad", THERE, [], models) == [THERE[0], THERE[2]]
    assert matching("", THERE, [], models) == []


def test_lines_of_several_logs_are_in_the_order_they_were_written() -> None:
    attic = [LogLine(timestamp=f"2026-01-31T12:00:0{second}Z", text=f"a{second}") for second in (1, 3)]
    cellar = [LogLine(timestamp="2026-01-31T13:00:02.123456789+01:00", text="c2"), LogLine(text="untimed")]
    lines = by_time([(THERE[0], attic), (THERE[2], cellar)])
    assert [(source.node, line.text) for source, line in lines] == [
        ("attic", "a1"),
        ("cellar", "c2"),
        ("cellar", "untimed"),
        ("attic", "a3"),
    ]


def test_a_node_that_left_is_told_from_one_that_is_there() -> None:
    assert has_left(NodeView(id="b", name="b", status="offline", remuda=NodeFacts(left=True)))
    assert not has_left(NodeView(id="b", name="b", status="offline"))
