"""Ports that other programs take between the look at them and the bind: another is tried, for a while."""

import anyio
import pytest
from structlog.testing import capture_logs

from remuda.core import limits
from remuda.core.errors import BackendFailed
from remuda.worker.processes.model import ProcessPhase
from tests.support.scripted_machine import Script
from tests.unit.worker.processes.rig import FIRST_PORT, Rig, launch, scripts, supervised
from tests.unit.worker.processes.test_supervisor import until

QUICK_EXIT_S = 0.001  # Before anybody asks how it is.
SECOND_PORT = FIRST_PORT + 1
WORDS = "OSError: [Errno 98] Address already in use"


@pytest.mark.parametrize(
    "loses",
    [
        pytest.param(Script(port_taken=True, exits_s=QUICK_EXIT_S), id="it exits without a word"),
        pytest.param(Script(exits_s=QUICK_EXIT_S, stderr=(WORDS,)), id="it exits and the other is gone"),
        pytest.param(Script(port_taken=True, ready_s=None), id="it lives on while the other answers"),
    ],
)
def test_a_process_that_loses_its_port_is_started_on_another(loses: Script) -> None:
    async def scene(rig: Rig) -> None:
        with capture_logs() as logs:
            replica = await rig.supervisor.start(launch())
        assert (replica.phase, replica.port, replica.restarts) == (ProcessPhase.READY, SECOND_PORT, 0)
        [noted] = [line for line in logs if line["event"] == "backend_port_lost"]
        assert noted["port"] == FIRST_PORT
        assert rig.ports.held == {SECOND_PORT}

    supervised(scene, scripts(loses, Script()))


def test_a_process_that_loses_every_port_fails_and_tells_which() -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(BackendFailed) as failure:
            await rig.supervisor.start(launch())
        assert failure.value.message == (
            "echo could not be started for m: while it started, other programs took port 50051, 50052,"
            " 50053, 50054; the last time it ended with exit code 1 before it became ready: another program"
            " took port 50054"
        )
        assert not rig.ports.held

    rig = supervised(scene, scripts(Script(port_taken=True, exits_s=QUICK_EXIT_S)))
    assert len(rig.machine.started) == limits.BACKEND_PORTS_MAX


def test_another_failure_after_a_lost_port_tells_of_both() -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(BackendFailed, match=r"took port 50051; the last time it ended with exit code 3"):
            await rig.supervisor.start(launch())

    supervised(scene, scripts(Script(port_taken=True), Script(exits_s=QUICK_EXIT_S, code=3)))


def test_all_tries_share_the_time_of_one_start() -> None:
    async def scene(rig: Rig) -> None:
        began = anyio.current_time()
        with pytest.raises(BackendFailed, match=r"not become ready on port 50052 within 30 s"):
            await rig.supervisor.start(launch())
        assert anyio.current_time() - began < limits.BACKEND_START_S + 1

    supervised(scene, scripts(Script(ready_s=None, exits_s=20, stderr=(WORDS,)), Script(ready_s=None)))


def test_one_that_was_ready_is_started_again_as_policy_says_whoever_has_its_port_now() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        rig.machine.foreign_ports.add(first.port)
        rig.machine.started[0].die(1)
        assert (await until(rig, ProcessPhase.WAITING)).trouble == "it ended with exit code 1"

    supervised(scene)
