"""An explanation, as people read it."""

from datetime import datetime

from remuda.cli.explain import explanation_lines
from remuda.wire.explanations import RequestExplanation, TryExplained, WaitExplained
from tests.unit.cli.test_models import NOON


def test_explanation_of_a_request_that_waited_and_was_tried_again() -> None:
    one = RequestExplanation(
        request_id="r-1",
        frontend="f-1",
        at=NOON,
        model="qwen",
        caller="website",
        status=200,
        node="gpu-1",
        replica="qwen#0",
        why="it was the only replica that could be chosen",
        waited_seconds=8.2,
        waits=(WaitExplained(cause="qwen to be loaded on gpu-1", seconds=8.2),),
        tried=(TryExplained(node="gpu-2", replica="qwen#1", failure="the connection was lost"),),
        first_token_seconds=8.4,
        total_seconds=75.0,
    )
    lines = list(explanation_lines(one))
    assert lines[0].startswith("r-1: qwen, asked for by the key website, finished at ")
    assert datetime.strptime(lines[0].split(" at ")[1].rsplit(" ", 1)[0], "%Y-%m-%d %H:%M:%S")
    assert lines[0].rsplit(" ", 1)[1], "the zone"
    assert lines[1:] == [
        "  answered by gpu-1 (qwen#0): it was the only replica that could be chosen",
        "  gpu-2 (qwen#1) failed: the connection was lost",
        "  it waited 8.2 s:",
        "    8.2 s for qwen to be loaded on gpu-1",
        "  first token after 8.4 s, finished after 1m 15s",
        "  decided by the frontend f-1",
    ]


def test_explanation_of_a_refusal_has_its_reason() -> None:
    one = RequestExplanation(
        request_id="r-2",
        at=NOON,
        model="qwen",
        status=429,
        error="rate_limit_exceeded",
        error_message="the key website may make 60 requests a minute",
        total_seconds=0.002,
    )
    assert list(explanation_lines(one))[1:] == [
        "  refused or failed with 429 rate_limit_exceeded: the key website may make 60 requests a minute",
        "  finished after 0.002 s",
    ]
