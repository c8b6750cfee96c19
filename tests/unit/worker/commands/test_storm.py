"""Many commands at once, with real threads and files, and the real supervisor on scripted processes."""

import json
from pathlib import Path

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.wire import subjects
from remuda.worker.processes.model import PortBook
from remuda.worker.processes.supervisor import Supervisor
from tests.support.commands_rig import Rig, rigged
from tests.support.scripted_machine import Script
from tests.unit.worker.commands.traffic import CHOICES, MachineWithFolders, offer

pytestmark = pytest.mark.anyio

CALLERS, COMMANDS_EACH = 6, 12
QUICK = Script(ready_s=0.0, ends_in_s=0.01)


async def give_commands(rig: Rig, entropy: SeededEntropy, errors: list[str]) -> None:
    for _ in range(COMMANDS_EACH):
        subject, document = CHOICES[int(entropy.fraction() * len(CHOICES))]
        for reply in await rig.say(subject, json.dumps(document).encode()):
            errors.append(json.loads(reply).get("error", ""))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
async def test_no_process_lock_or_temporary_file_is_left_and_no_two_processes_for_one_key(
    tmp_path: Path, seed: int
) -> None:
    machine = MachineWithFolders(lambda _key: QUICK)
    supervisor = Supervisor(
        machine,
        machine,
        PortBook(50051, 60000),
        clock=SystemClock(),
        entropy=SeededEntropy(seed),
        changed=lambda: None,
    )
    errors: list[str] = []
    async with anyio.create_task_group() as tasks:
        await tasks.start(supervisor.run)
        async with rigged(tmp_path, supervisor) as rig:
            offer(rig)
            async with anyio.create_task_group() as callers:
                for caller in range(CALLERS):
                    callers.start_soon(give_commands, rig, SeededEntropy(100 * seed + caller), errors)
            await rig.say(subjects.backend_stop, b"")
            assert rig.commands.report().work == ()
            places = rig.depot.places
            left = [name for kind in ("staging", "ready", "trash") for name in places.names_in(kind)]
        tasks.cancel_scope.cancel()

    assert machine.started, "something ran"
    assert machine.alive == []
    assert supervisor.replicas() == []
    assert left == []
    assert [error for error in errors if "internal error" in error] == []
