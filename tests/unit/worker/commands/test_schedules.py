"""Any schedule of commands, on downloads and processes that behave in any way: each command is answered once,
no key has two processes, and what was deleted is gone. The scripted machine watches the keys each time."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
from anyio.to_thread import run_sync
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Unavailable
from remuda.wire import subjects
from remuda.wire.backends import BackendDelete, BackendDeleteReply
from remuda.worker.depot.fetch_unpack import InstallTracker
from remuda.worker.depot.install_spec import InstallSpec
from remuda.worker.depot.layout import Record
from remuda.worker.depot.versions import SystemDisk, try_lock
from remuda.worker.processes.model import PortBook
from remuda.worker.processes.supervisor import Supervisor
from tests.support.clocks import HostClock
from tests.support.commands_rig import RUN, Asked, GatedDepot, Rig, commanded, places_in
from tests.support.examples import examples
from tests.support.inline_threads import threads_inline
from tests.support.scripted_machine import Script
from tests.support.virtual_loop import run_virtually
from tests.support.waiting import wait_until
from tests.unit.worker.commands.traffic import (
    BACKENDS,
    CHOICES,
    STANDS_FOR,
    MachineWithFolders,
    Spoken,
    offer,
)
from tests.unit.worker.processes.behaviours import any_script, seconds

MEMORY = Path("/dev/shm")  # Where there is one, syncing costs nothing.
LONG_S = 600.0
UNANSWERED = {subjects.backend_stop}
REPLACING = {subjects.backend_upgrade, subjects.backend_delete, subjects.backend_rollback}
STOP_MODEL: Spoken = (subjects.model_stop, {"model_name": "m", "process_key": "m#0", "expected_address": ""})


@dataclass(frozen=True, slots=True)
class Turn:
    wait_s: float
    spoken: Spoken
    patience_s: float  # Then whoever asked leaves, and the command goes on.


Said = tuple[Turn, Asked]


@dataclass(frozen=True, slots=True)
class Arrival:
    """How the next download goes."""

    takes_s: float = 0.0
    fails: bool = False


any_turns = st.lists(
    st.builds(
        Turn,
        wait_s=seconds,
        spoken=st.sampled_from((*CHOICES, STOP_MODEL)),
        patience_s=st.sampled_from((LONG_S, LONG_S, 0.01, 5.0)),
    ),
    max_size=14,
)
any_arrivals = st.lists(
    st.builds(Arrival, takes_s=seconds, fails=st.sampled_from((False, False, True))), max_size=6
)


class RoamingDepot(GatedDepot):
    """Its bytes come from nowhere, each time as the next arrival says."""

    arrivals: Sequence[Arrival] = ()

    async def _bring_from(self, uri: str, spec: InstallSpec, tracker: InstallTracker) -> bool:
        arrival, *self.arrivals = self.arrivals or (Arrival(),)
        staging = await run_sync(self._stager.stage, spec.name)
        (staging / "run.sh").write_text(RUN)
        await anyio.sleep(arrival.takes_s)
        if arrival.fails:
            raise Unavailable("the line is down")
        await run_sync(self._stager.finish, spec, Record(source=uri))
        return True


class WatchfulDisk(SystemDisk):
    """Commands end processes before their files: nothing that goes may be in use."""

    def __init__(self, machine: MachineWithFolders) -> None:
        self._machine = machine

    def in_use(self, path: Path) -> bool:
        assert self._machine.folder_stamp(path) not in self._machine.occupied, f"{path} is in use"
        return False


@dataclass(frozen=True, slots=True)
class Scene:
    rig: Rig
    machine: MachineWithFolders
    supervisor: Supervisor

    async def play(self, plan: Sequence[Turn]) -> list[Said]:
        """Until all is answered, also to those who have left."""
        said: list[Said] = []
        async with anyio.create_task_group() as callers:
            for turn in plan:
                await anyio.sleep(turn.wait_s)
                said.append((turn, Asked(json.dumps(self.document(turn)).encode())))
                callers.start_soon(self.say, *said[-1])
        await wait_until(lambda: all(map(is_answered, said)), within=LONG_S, what="every reply")
        return said

    def document(self, turn: Turn) -> dict[str, object]:
        subject, document = turn.spoken
        if subject is not subjects.model_stop:
            return document
        instances = [one.instance for one in self.supervisor.replicas() if str(one.key) == "m#0"]
        return {**document, "instance": next(iter(instances), "")}

    async def say(self, turn: Turn, asked: Asked) -> None:
        """Whoever replaces or removes files, and says that it went well, has ended what ran from them."""
        subject, document = turn.spoken
        before = self.running(str(document.get("backend")))
        with anyio.move_on_after(turn.patience_s):
            await self.rig.hear(subject, asked)
            if subject in REPLACING and json.loads(asked.replies[0])["success"]:
                assert not before & {process.pid for process in self.machine.alive}, turn

    def running(self, backend: str) -> set[int]:
        folder = self.rig.folder(STANDS_FOR.get(backend, backend))
        return {process.pid for process in self.machine.alive if process.command.cwd == folder}

    async def clear_away(self) -> None:
        """Delete everything, one after the other. What hangs in the kernel takes a while."""
        for name in BACKENDS:
            await wait_until(partial(self.deletes, name), within=LONG_S, what=f"{name} to be deleted")
            assert not self.rig.folder(name).exists()
            assert not self.running(name)

    async def deletes(self, name: str) -> bool:
        """Or there was nothing to be deleted."""
        request = BackendDelete(backend=name)
        reply = await self.rig.ask(subjects.backend_delete, request, BackendDeleteReply)
        return reply.success or "backend not found" in reply.error

    def assert_nothing_is_left(self) -> None:
        places = self.rig.depot.places
        assert self.machine.alive == []
        assert self.supervisor.replicas() == []
        assert [path.name for path in places.backends.glob("[!.]*")] == []
        assert not any(places.names_in(kind) for kind in ("staging", "ready", "previous", "trash"))
        for name in places.names_in("locks"):
            with try_lock(places.lock(name)) as ours:
                assert ours, f"somebody holds the lock of {name}"


def is_answered(said: Said) -> bool:
    """Exactly once, and not by a defect; unless nobody is to hear how it went."""
    turn, asked = said
    assert len(asked.replies) <= (0 if turn.spoken[0] in UNANSWERED else 1), turn
    assert all(b"internal error" not in reply for reply in asked.replies), turn
    return bool(asked.replies) or turn.spoken[0] in UNANSWERED


async def played(
    root: Path, plan: Sequence[Turn], arrivals: Sequence[Arrival], scripts: list[Script]
) -> list[Said]:
    """What was said. When it is over nothing is left of it."""
    machine = MachineWithFolders(lambda _key: scripts.pop() if scripts else Script())
    clock = HostClock()
    supervisor = Supervisor(
        machine,
        machine,
        PortBook(50051, 60000),
        clock=clock,
        entropy=SeededEntropy(1),
        changed=lambda: None,
    )
    depot = RoamingDepot(places_in(root), clock, disk=WatchfulDisk(machine))
    depot.arrivals = arrivals
    async with anyio.create_task_group() as tasks:
        await tasks.start(supervisor.run)
        async with commanded(root, depot, clock, supervisor) as rig:
            offer(rig)
            scene = Scene(rig, machine, supervisor)
            said = await scene.play(plan)
            await scene.clear_away()
            scene.assert_nothing_is_left()
        tasks.cancel_scope.cancel()
    return said


@settings(max_examples=examples(200), deadline=None)
@given(plan=any_turns, arrivals=any_arrivals, scripts=st.lists(any_script | st.just(Script()), max_size=8))
def test_no_schedule_of_commands_leaves_one_unanswered_or_anything_behind(
    plan: list[Turn], arrivals: list[Arrival], scripts: list[Script]
) -> None:
    with threads_inline(), tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as root:
        said = run_virtually(lambda: played(Path(root), plan, arrivals, list(scripts)))
    assert all(map(is_answered, said))
