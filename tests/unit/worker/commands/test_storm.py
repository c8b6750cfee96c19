"""Commands about the same few backends, all at once, with the real supervisor on scripted processes."""

import json
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.ids import NodeId
from remuda.wire import subjects
from remuda.worker.processes.port_book import PortBook
from remuda.worker.processes.supervisor import Supervisor
from tests.support.scripted_machine import Script, ScriptedMachine
from tests.unit.worker.commands.rig import Rig, rigged

pytestmark = pytest.mark.anyio

CALLERS, COMMANDS_EACH = 6, 12
QUICK = Script(ready_s=0.0, ends_in_s=0.01)

Spoken = tuple[Callable[[NodeId], str], dict[str, object]]
CHOICES: tuple[Spoken, ...] = (
    (subjects.backend_install, {"backend": "meta", "model_id": "m"}),
    (subjects.backend_install, {"backend": "build", "model_id": "m"}),
    (subjects.backend_install, {"backend": "build", "model_id": "n", "replica_index": 1}),
    (subjects.backend_install, {"backend": "build", "model_id": "m", "force": True}),
    (subjects.backend_install, {"backend": "other", "model_id": "m"}),
    (subjects.backend_install, {"backend": "other", "op_id": "o-1"}),
    (subjects.backend_upgrade, {"backend": "meta", "op_id": "o-2"}),
    (subjects.backend_upgrade, {"backend": "build"}),
    (subjects.backend_delete, {"backend": "build"}),
    (subjects.backend_delete, {"backend": "other"}),
    (subjects.backend_rollback, {"backend": "meta"}),
    (subjects.backend_cancel, {"op_id": "o-1"}),
    (subjects.backend_stop, {"backend": "m"}),
    (subjects.backend_stop, {"backend": "build", "force": True}),
    (subjects.backend_list, {}),
    (subjects.models_running, {}),
)


class MachineWithFolders(ScriptedMachine):
    """Its processes run from real folders, which may be replaced."""

    def folder_stamp(self, folder: Path) -> str:
        try:
            return str(folder.stat().st_ino)
        except OSError:
            return ""


def offer(rig: Rig) -> None:
    (rig.root / "own.yaml").write_text(
        f"- name: meta\n  capabilities: {{default: build}}\n"
        f"- name: build\n  uri: file://{rig.source('build')}\n"
        f"- name: other\n  uri: file://{rig.source('other')}\n"
    )


async def give_commands(rig: Rig, entropy: SeededEntropy, errors: list[str]) -> None:
    for _ in range(COMMANDS_EACH):
        subject, document = CHOICES[int(entropy.fraction() * len(CHOICES))]
        for reply in await rig.say(subject, json.dumps(document).encode()):
            errors.append(json.loads(reply).get("error", ""))


@pytest.mark.parametrize("seed", range(3))
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
            assert rig.commands.account().work == ()
            places = rig.depot.places
            left = [name for kind in ("staging", "ready", "trash") for name in places.names_in(kind)]
        tasks.cancel_scope.cancel()

    assert machine.started, "something ran"
    assert machine.alive == []
    assert supervisor.replicas() == []
    assert left == []
    assert [error for error in errors if "internal error" in error] == []
