"""Events come out as they went in, however they were cut, and each after the number that was asked for."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.responses.event_log import EventLog
from remuda.inference.stored_responses import StoredResponse

pytestmark = pytest.mark.anyio
KEPT = StoredResponse(
    id="resp_1", owner="", model="m", status="completed", created=1, echo=b'"model":"m"', input=b"[]"
)


def event(number: int, name: str = "response.output_text.delta") -> bytes:
    return f'event: {name}\ndata: {{"type":"{name}","sequence_number":{number}}}\n\n'.encode()


async def numbers(log: EventLog, after: int) -> list[int]:
    told = b"".join([data async for data in log.after(after)])
    lines = [line for line in told.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line.removeprefix(b"data: "))["sequence_number"] for line in lines]


@given(st.integers(0, 30), st.lists(st.integers(0, 3000)), st.integers(-1, 40))
async def test_any_cut_gives_the_same_events(count: int, cuts: Sequence[int], after: int) -> None:
    last = event(count, "response.completed")
    data = b": a comment\n\n".join(event(number) for number in range(count)) + last
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    log = EventLog()
    for start, end in itertools.pairwise(places):
        log.add(data[start:end])
    log.end(KEPT)
    assert await numbers(log, after) == [number for number in range(count + 1) if number > after]


async def test_what_failed_in_the_middle_says_why() -> None:
    log = EventLog()
    log.add(event(0) + event(1, "error"))
    assert json.loads(log.error)["type"] == "error"
    log.end(None)
    assert await numbers(log, -1) == [0]
