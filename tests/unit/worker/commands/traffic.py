"""Commands about the same few backends, and a machine whose processes run from real folders."""

from collections.abc import Callable
from pathlib import Path

from remuda.core.ids import NodeId
from remuda.wire import subjects
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import ProcessCommand
from tests.support.commands_rig import Rig
from tests.support.scripted_machine import Script, ScriptedMachine, ScriptedProcess

Spoken = tuple[Callable[[NodeId], str], dict[str, object]]
BACKENDS = ("build", "other")
STANDS_FOR = {"meta": "build"}
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

    def __init__(self, script_for: Callable[[ProcessKey], Script]) -> None:
        super().__init__(script_for)
        self._began_in: dict[int, str] = {}

    @property
    def occupied(self) -> set[str]:
        """The stamps of the folders that live processes were started in."""
        return {self._began_in[process.pid] for process in self.alive}

    async def start(self, key: ProcessKey, instance: str, command: ProcessCommand) -> ScriptedProcess:
        process = await super().start(key, instance, command)
        self._began_in[process.pid] = self.folder_stamp(command.cwd)
        return process

    def folder_stamp(self, folder: Path) -> str:
        try:
            return str(folder.stat().st_ino)
        except OSError:
            return ""


def offer(rig: Rig) -> None:
    """All that the commands are about, in the machine's own gallery."""
    (rig.root / "own.yaml").write_text(
        f"- name: meta\n  capabilities: {{default: build}}\n"
        f"- name: build\n  uri: file://{rig.source('build')}\n"
        f"- name: other\n  uri: file://{rig.source('other')}\n"
    )
