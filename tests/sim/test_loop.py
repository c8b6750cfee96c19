"""The clock that jumps."""

import anyio
import pytest

from tests.support.virtual_loop import NothingLeft, run_virtually

DAY_S = 86_400.0


def test_waiting_takes_no_time_and_keeps_its_order() -> None:
    woken: list[tuple[str, float]] = []

    async def wait(name: str, span_s: float) -> None:
        await anyio.sleep(span_s)
        woken.append((name, anyio.current_time()))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "late", 2 * DAY_S)
            tasks.start_soon(wait, "early", DAY_S)

    run_virtually(main)
    assert woken == [("early", DAY_S), ("late", 2 * DAY_S)]


def test_a_wait_for_what_can_never_come_is_an_error() -> None:
    with pytest.raises(NothingLeft):
        run_virtually(anyio.sleep_forever)
