"""Which logs a name stands for."""

import pytest

from remuda.cli.client import TIMEOUT_S
from remuda.cli.logs import WAIT_S, LogSource, as_json_line, matching
from remuda.core import limits
from remuda.wire.logs import LogLine
from remuda.wire.serving import ReplicaView

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
