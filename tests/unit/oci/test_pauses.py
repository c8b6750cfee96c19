"""Whoever began the work hears that it waits before another attempt."""

from datetime import timedelta

import anyio
import pytest

from remuda.core.entropy import SeededEntropy
from remuda.core.retry import Backoff
from remuda.oci.errors import RegistryFailed
from remuda.oci.pauses import FetchPause, telling_pauses
from remuda.oci.transport import RetryBudget, RetryPolicy

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(attempts_max=3, backoff=Backoff(timedelta(milliseconds=1), timedelta(milliseconds=1)))


async def test_each_pause_is_told_with_its_reason_and_its_end() -> None:
    told: list[str] = []

    def hear(pause: FetchPause | None) -> None:
        told.append("" if pause is None else str(pause))

    async def fetch() -> None:
        budget = RetryBudget(AT_ONCE, SeededEntropy(1), "a file")
        for _ in range(3):
            await budget.pause(RegistryFailed("hub.test cannot be reached: no route to host"))

    with telling_pauses(hear), pytest.raises(ExceptionGroup):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fetch)
    why = "hub.test cannot be reached: no route to host; trying again"
    assert told == [f"{why} (2 of 3)", "", f"{why} (3 of 3)", ""]
