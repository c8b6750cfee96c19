"""Any schedule of starts, stops, crashes and replaced folders, on processes that behave in any way, leaves
nothing behind and never makes two processes of one key. The scripted machine checks the latter each time."""

from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.errors import RemudaError
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import ProcessPhase
from tests.support.examples import examples
from tests.support.scripted_machine import Script
from tests.unit.worker.processes.behaviours import any_script, seconds
from tests.unit.worker.processes.rig import Rig, launch, supervised

BACKENDS = ("echo", "llama-cpp")
ACTS = ("start", "start", "start", "stop", "stop backend", "crash", "replace folder", "give up")
KEYS = tuple(ProcessKey(model, replica) for model in "ab" for replica in (0, 1))


@dataclass(frozen=True, slots=True)
class Turn:
    wait_s: float
    act: str
    key: ProcessKey
    backend: str
    free: bool


turns = st.lists(
    st.builds(
        Turn,
        wait_s=seconds,
        act=st.sampled_from(ACTS),
        key=st.sampled_from(KEYS),
        backend=st.sampled_from(BACKENDS),
        free=st.booleans(),
    ),
    max_size=14,
)


async def play(rig: Rig, turn: Turn) -> None:
    supervisor = rig.supervisor
    match turn.act:
        case "start":
            try:
                replica = await supervisor.start(
                    launch(turn.key.model_id, turn.key.replica_index, turn.backend)
                )
            except RemudaError:
                return
            assert replica.phase in (ProcessPhase.READY, ProcessPhase.UNRESPONSIVE)
            assert replica.backend == turn.backend
        case "give up":  # The caller's patience ends, not the start.
            with anyio.move_on_after(0.2):
                await play(rig, Turn(0, "start", turn.key, turn.backend, turn.free))
        case "stop":
            await supervisor.stop((turn.key,), free=turn.free)
        case "stop backend":
            await supervisor.stop(supervisor.named(turn.backend), free=turn.free)
        case "crash":
            for process in rig.machine.alive[:1]:
                process.die(-11)
        case "replace folder":
            folder = Path("/backends") / turn.backend
            rig.machine.stamps[folder] = rig.machine.folder_stamp(folder) + "1"


@pytest.mark.parametrize("share", range(4))  # Each has the time that one test has.
@settings(max_examples=examples(300), deadline=None)
@given(plan=turns, scripts=st.lists(any_script, max_size=12))
def test_no_schedule_leaves_anything_behind_or_runs_a_key_twice(
    share: int, plan: list[Turn], scripts: list[Script]
) -> None:
    left = list(scripts)

    async def scene(rig: Rig) -> None:
        async with anyio.create_task_group() as tasks:
            for turn in plan:
                await anyio.sleep(turn.wait_s)
                tasks.start_soon(play, rig, turn)
                assert_consistent(rig)
        while rig.supervisor.replicas():  # What hangs in the kernel takes a while.
            await rig.supervisor.stop(KEYS, free=True)
        assert_consistent(rig)
        assert rig.machine.alive == []
        assert not rig.ports.held

    rig = supervised(scene, lambda _key: left.pop() if left else Script())
    assert rig.machine.alive == []


def assert_consistent(rig: Rig) -> None:
    """Every live process has an entry that knows it, and its port is held."""
    known = {replica.pid for replica in rig.supervisor.replicas() if replica.pid}
    assert {process.pid for process in rig.machine.alive} <= known
    assert {process.port for process in rig.machine.alive} <= rig.ports.held
