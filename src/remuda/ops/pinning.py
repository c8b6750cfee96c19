"""Asks registries for the digests behind tags, concurrently and with a short deadline. Best effort."""

from collections.abc import Collection, Mapping
from typing import Final

import anyio

from remuda.ops.ports import Build, Pin, Pinner

PIN_S: Final = 5.0  # For all registries together.
_AT_ONCE_MAX: Final = 16


async def pin_all(
    pinner: Pinner, builds: Collection[Build], patience_s: float = PIN_S
) -> Mapping[Build, Pin]:
    """What each stands for. Who has not answered in time is in trouble."""
    pins = dict.fromkeys(builds, Pin(trouble=f"no answer within {patience_s:g} s"))
    slots = anyio.CapacityLimiter(_AT_ONCE_MAX)

    async def one(build: Build) -> None:
        async with slots:
            pins[build] = await pinner.pin(build)

    with anyio.move_on_after(patience_s):
        async with anyio.create_task_group() as asking:
            for build in builds:
                asking.start_soon(one, build)
    return pins
