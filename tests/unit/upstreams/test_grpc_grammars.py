"""Grammars that were made once are not made again, within bounds."""

import json

import pytest

from remuda.core.slices import slice_count
from remuda.upstreams.grpc import grammars
from remuda.upstreams.grpc.grammars import Grammars


def _schema(number: int, properties: int = 300) -> bytes:
    words = {f"p{number}-{index}": {"type": "string"} for index in range(properties)}
    return json.dumps({"type": "object", "properties": words}).encode()


def test_the_same_schema_is_worked_on_once() -> None:
    kept = Grammars()
    made, slices = slice_count(kept.of_schema(_schema(1)))

    assert slices > 1
    assert slice_count(kept.of_schema(_schema(1))) == (made, 1)


def test_the_same_tools_are_worked_on_once_and_others_anew() -> None:
    kept = Grammars()
    tools = [("a", _schema(1), False), ("b", _schema(2), False)]
    made, slices = slice_count(kept.of_tools(tools, parallel=True, no_action="answer"))

    assert slices > 1
    assert slice_count(kept.of_tools(tools, parallel=True, no_action="answer")) == (made, 1)
    for others, parallel, no_action in (
        (tools[:1], True, "answer"),
        (tools, False, "answer"),
        (tools, True, None),
    ):
        other, slices = slice_count(kept.of_tools(others, parallel=parallel, no_action=no_action))
        assert slices > 1
        assert other != made


def test_what_was_not_used_for_longest_goes_first_when_there_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammars, "KEPT_BYTES_MAX", 100_000)  # Of which one takes about a third.
    kept = Grammars()
    for number in range(4):
        slice_count(kept.of_schema(_schema(number)))
        assert slice_count(kept.of_schema(_schema(0)))[1] == 1, "it is used all the time"

    assert slice_count(kept.of_schema(_schema(3)))[1] == 1
    assert slice_count(kept.of_schema(_schema(1)))[1] > 1
