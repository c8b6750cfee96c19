"""Rows of the behaviour page about ports, readiness and identity, on scripted processes."""

import anyio
import pytest

from remuda.core import limits
from remuda.core.errors import BackendFailed
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import ProcessPhase
from tests.support.scripted_machine import Script
from tests.unit.worker.processes.rig import FIRST_PORT, Rig, launch, scripts, supervised

KEY = ProcessKey("m", 0)
STEP_S = 0.05  # Of a clock that jumps.


def test_a126_a_stopped_key_gets_its_port_back_and_meanwhile_nobody_else_does() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        await rig.supervisor.stop([KEY], free=True)
        other = await rig.supervisor.start(launch("other"))
        assert (first.port, other.port) == (FIRST_PORT, FIRST_PORT + 1)
        await anyio.sleep(limits.PORT_QUARANTINE_S + 1)
        assert (await rig.supervisor.start(launch())).port == FIRST_PORT

    supervised(scene)


def test_a128_a_dead_process_is_replaced_by_the_next_start() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        [process] = rig.machine.alive
        process.die(-9)
        await anyio.sleep(STEP_S)
        second = await rig.supervisor.start(launch())
        assert (second.instance != first.instance, second.phase) == (True, ProcessPhase.READY)
        assert len(rig.machine.alive) == 1

    supervised(scene)


def test_a129_a_start_returns_when_the_backend_answers_and_not_before() -> None:
    async def scene(rig: Rig) -> None:
        began = anyio.current_time()
        replica = await rig.supervisor.start(launch())
        assert replica.phase is ProcessPhase.READY
        assert 7 <= anyio.current_time() - began <= 7 + 2 * limits.BACKEND_HEALTH_MOST_S

    supervised(scene, scripts(Script(ready_s=7)))


def test_d1_35_a_thousand_failed_starts_use_up_no_port() -> None:
    async def scene(rig: Rig) -> None:
        for _ in range(1000):
            with pytest.raises(BackendFailed, match="exit code 1"):
                await rig.supervisor.start(launch())
            await anyio.sleep(limits.PORT_QUARANTINE_S)
        assert not rig.ports.held

    supervised(scene, scripts(Script(ready_s=None, exits_s=0.1, code=1)), ports_count=2)
