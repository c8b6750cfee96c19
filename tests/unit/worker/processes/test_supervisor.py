"""The supervisor, claim by claim, on scripted processes and a virtual clock."""

from itertools import pairwise

import anyio
import pytest
from structlog.testing import capture_logs

from remuda.core.errors import BackendFailed, StartFailed, Unavailable
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import ProcessPhase, ProcessStatus, Protocol, Stopped
from tests.support.scripted_machine import Script
from tests.unit.worker.processes.rig import FIRST_PORT, Rig, launch, scripts, supervised

KEY = ProcessKey("m", 0)
STEP_S = 0.05  # Of a clock that jumps.
CHANGED_S = 1.0  # After which a process is no longer what it was.


async def until(rig: Rig, phase: ProcessPhase, key: ProcessKey = KEY) -> ProcessStatus:
    with anyio.fail_after(3600):
        while True:
            for replica in rig.supervisor.replicas():
                if replica.key == key and replica.phase is phase:
                    return replica
            await anyio.sleep(STEP_S)


def test_each_key_has_a_process_and_a_port_of_its_own() -> None:
    async def scene(rig: Rig) -> None:
        one = await rig.supervisor.start(launch("a"))
        two = await rig.supervisor.start(launch("b"))
        assert (one.port, two.port) == (FIRST_PORT, FIRST_PORT + 1)
        assert one.phase is two.phase is ProcessPhase.READY
        assert one.instance != two.instance

    assert supervised(scene).machine.alive == []


def test_starting_what_is_ready_returns_the_same_process() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        assert await rig.supervisor.start(launch()) == first

    assert len(supervised(scene).machine.started) == 1


def test_starts_of_one_key_at_one_time_share_a_process() -> None:
    async def scene(rig: Rig) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(rig.supervisor.start, launch())

    assert len(supervised(scene).machine.started) == 1


def test_another_backend_under_the_key_takes_the_place_of_the_first_gracefully() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch(backend="echo"))
        replica = await rig.supervisor.start(launch(backend="llama-cpp"))
        assert replica.backend == "llama-cpp"
        assert rig.machine.freed == [KEY]
        assert len(rig.machine.alive) == 1

    supervised(scene)


def test_other_arguments_mean_another_process() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch(options="--context=1"))
        await rig.supervisor.start(launch(options="--context=2"))
        assert [process.command.argv[1] for process in rig.machine.alive] == ["--context=2"]

    supervised(scene)


def test_a_process_whose_folder_was_replaced_is_not_trusted() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        rig.machine.stamps[first.folder] = "2"
        assert rig.supervisor.usable(KEY, "echo") is None
        second = await rig.supervisor.start(launch())
        assert second.instance != first.instance
        assert rig.supervisor.usable(KEY, "echo") == second

    supervised(scene)


def test_a_process_of_another_backend_is_not_trusted() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        assert rig.supervisor.usable(KEY, "llama-cpp") is None

    supervised(scene)


def test_a_process_whose_end_is_not_noticed_yet_is_not_usable_once_it_was_looked_at() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        [process] = rig.machine.alive
        process.code = -9  # Its port is closed, and who waits for its end has not been told.
        assert rig.supervisor.usable(KEY, "echo") is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.supervisor.confirm, KEY)
            await anyio.sleep(STEP_S)
            process.over.set()
        assert rig.supervisor.usable(KEY, "echo") is None

    supervised(scene)


def test_a_process_that_has_closed_its_port_is_stopped_once_it_was_looked_at() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        await anyio.sleep(CHANGED_S)
        await rig.supervisor.confirm(KEY)
        assert rig.supervisor.replicas() == []

    supervised(scene, scripts(Script(closes_port_s=CHANGED_S)))


def test_a_busy_process_stays_usable_when_it_was_looked_at() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        await anyio.sleep(CHANGED_S)
        await rig.supervisor.confirm(KEY)
        assert rig.supervisor.usable(KEY, "echo") == first

    supervised(scene, scripts(Script(silent=(CHANGED_S, 60))))


def test_a_child_that_dies_while_it_starts_leaves_an_error_and_nothing_else() -> None:
    script = Script(ready_s=None, exits_s=0.3, code=3, stderr=("one", "two"))

    async def scene(rig: Rig) -> None:
        with pytest.raises(BackendFailed) as failure:
            await rig.supervisor.start(launch())
        assert failure.value.message == (
            "echo could not be started for m: it ended with exit code 3 before it became ready;"
            " its last lines:\n  one\n  two"
        )
        assert rig.supervisor.replicas() == []
        assert not rig.ports.held

    supervised(scene, scripts(script))


def test_a_backend_without_a_model_is_named_once() -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(StartFailed, match=r"^echo did not start: it ended with exit code 3"):
            await rig.supervisor.start(launch("echo"))

    supervised(scene, scripts(Script(ready_s=None, exits_s=0.3, code=3)))


def test_a_program_that_cannot_be_started_frees_its_port() -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(BackendFailed, match=r"there is no program run\.sh"):
            await rig.supervisor.start(launch())
        assert not rig.ports.held

    supervised(scene, scripts(Script(cannot_start="there is no program run.sh")))


def test_a_process_that_is_not_ready_in_time_is_ended_and_the_start_fails() -> None:
    async def scene(rig: Rig) -> None:
        began = anyio.current_time()
        with pytest.raises(BackendFailed, match=r"not become ready on port 50051 within 30 s: connection"):
            await rig.supervisor.start(launch())
        assert anyio.current_time() - began < 31
        assert rig.machine.alive == []

    supervised(scene, scripts(Script(ready_s=None)))


def test_a_process_on_the_wrong_port_is_told_where_it_listens() -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(BackendFailed, match=r"it listens on 51051 instead"):
            await rig.supervisor.start(launch())

    supervised(scene, scripts(Script(listens_elsewhere=True)))


def test_a_stop_while_it_starts_makes_the_start_say_so() -> None:
    async def scene(rig: Rig) -> None:
        async def start() -> None:
            with pytest.raises(BackendFailed, match="it was stopped while starting"):
                await rig.supervisor.start(launch())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await until(rig, ProcessPhase.STARTING)
            # Nothing was loaded: it is not asked to free, and that is no trouble.
            assert await rig.supervisor.stop((KEY,), free=True) == [
                Stopped(KEY, FIRST_PORT, freed=False, gone=True)
            ]

    supervised(scene, scripts(Script(ready_s=10)))


def test_a_stop_frees_then_ends_and_reports_it() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        assert await rig.supervisor.stop((KEY,), free=True) == [
            Stopped(KEY, FIRST_PORT, freed=True, gone=True)
        ]
        assert rig.supervisor.replicas() == []

    supervised(scene)


def test_a_forced_stop_does_not_free() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        [stopped] = await rig.supervisor.stop((KEY,), free=False)
        assert (stopped.gone, stopped.freed, rig.machine.freed) == (True, False, [])

    supervised(scene)


def test_a_backend_that_refuses_to_free_is_ended_all_the_same() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        [stopped] = await rig.supervisor.stop((KEY,), free=True)
        assert (stopped.gone, stopped.freed, stopped.not_freed) == (True, False, "UNIMPLEMENTED")

    supervised(scene, scripts(Script(refuses_to_free="UNIMPLEMENTED")))


def test_what_speaks_http_is_ended_without_being_asked_to_free() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch(protocol=Protocol.HTTP))
        with capture_logs() as logs:
            assert await rig.supervisor.stop((KEY,), free=True) == [
                Stopped(KEY, FIRST_PORT, freed=False, gone=True)
            ]
        assert (rig.machine.freed, logs) == ([], [])

    supervised(scene, scripts(Script(refuses_to_free="there is no such call")))


def test_stopping_what_is_not_there_does_nothing() -> None:
    async def scene(rig: Rig) -> None:
        assert await rig.supervisor.stop((ProcessKey("nobody", 0),), free=True) == []

    supervised(scene)


def test_entry_and_port_stay_until_the_process_is_really_gone() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: rig.supervisor.stop((KEY,), free=False))
            replica = await until(rig, ProcessPhase.STOPPING)
            assert replica.pid
            assert rig.ports.held == {FIRST_PORT}

    supervised(scene, scripts(Script(ends_in_s=5)))


def test_a_start_during_a_stop_waits_for_its_end() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: rig.supervisor.stop((KEY,), free=False))
            await until(rig, ProcessPhase.STOPPING)
            second = await rig.supervisor.start(launch())
        assert second.instance != first.instance
        assert len(rig.machine.alive) == 1

    supervised(scene, scripts(Script(ends_in_s=5)))


def test_what_does_not_end_is_told_and_stays_listed_until_it_does() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        [stopped] = await rig.supervisor.stop((KEY,), free=False)
        assert not stopped.gone
        assert "does not stop, not even when killed" in stopped.trouble
        [replica] = rig.supervisor.replicas()
        assert replica.phase is ProcessPhase.STOPPING
        assert rig.ports.held == {FIRST_PORT}
        [stopped] = await rig.supervisor.stop((KEY,), free=False)
        assert stopped.gone
        assert not rig.ports.held

    supervised(scene, scripts(Script(ends_in_s=None, survives_kills=1)))


def test_a_crash_after_readiness_starts_it_again_as_another_instance() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        waiting = await until(rig, ProcessPhase.WAITING)
        assert waiting.trouble.startswith("it was killed by SIGKILL: ")
        second = await until(rig, ProcessPhase.READY)
        assert second.instance != first.instance
        assert second.restarts == 1
        assert second.trouble == waiting.trouble, "whoever did not look meanwhile is told, too"
        assert second.port != first.port, "callers of the former process must not meet the new one unknowing"

    supervised(scene, scripts(Script(exits_s=5, code=-9), Script()))


def test_restarts_wait_longer_each_time_and_end_after_five_short_lives() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        failed = await until(rig, ProcessPhase.FAILED)
        assert "ended 5 times in a row within 60 s" in failed.trouble
        births = [process.born_s for process in rig.machine.started]
        gaps = [later - earlier for earlier, later in pairwise(births)]
        assert len(births) == 5
        assert gaps == sorted(gaps)

    supervised(scene, scripts(Script(exits_s=5)))


def test_what_failed_for_good_starts_again_when_somebody_asks() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        await until(rig, ProcessPhase.FAILED)
        assert (await rig.supervisor.start(launch())).phase is ProcessPhase.READY

    supervised(scene, scripts(*[Script(exits_s=5)] * 5, Script()))


def test_a_silent_process_is_shown_as_such_and_left_alone() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        silent = await until(rig, ProcessPhase.UNRESPONSIVE)
        assert silent.trouble == "no answer within 2 s"
        assert rig.supervisor.usable(KEY, "echo") is not None, "busy is not dead"
        again = await until(rig, ProcessPhase.READY)
        assert again.instance == first.instance

    supervised(scene, scripts(Script(silent=(10, 100))))


def test_a_process_that_closed_its_port_is_replaced() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        waiting = await until(rig, ProcessPhase.WAITING)
        assert waiting.trouble == "it closed its port 50051 but is still running"
        await until(rig, ProcessPhase.READY)
        assert len(rig.machine.alive) == 1

    supervised(scene, scripts(Script(closes_port_s=20), Script()))


def test_a_process_that_refuses_now_and_then_is_left_alone() -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.supervisor.start(launch())
        (process,) = rig.machine.started
        for _ in range(4):  # Each refusal, and that it was none the next time.
            await until(rig, ProcessPhase.UNRESPONSIVE)
            assert (await until(rig, ProcessPhase.READY)).instance == first.instance
        assert process.looks > 8
        assert rig.machine.started == [process]

    supervised(scene, scripts(Script(refused_looks=frozenset({2, 4, 6, 8}))))


def test_no_free_port_is_an_error_that_names_the_range() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch("a"))
        with pytest.raises(BackendFailed, match="no port from 50051 to 50051 is free"):
            await rig.supervisor.start(launch("b"))

    supervised(scene, ports_count=1)


def test_after_closing_nothing_starts() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        assert [stopped.gone for stopped in await rig.supervisor.close()] == [True]
        with pytest.raises(Unavailable, match="this worker is stopping"):
            await rig.supervisor.start(launch())

    supervised(scene)


def test_every_move_is_announced() -> None:
    async def scene(rig: Rig) -> None:
        await rig.supervisor.start(launch())
        heard = len(rig.changes)
        await rig.supervisor.stop((KEY,), free=True)
        assert len(rig.changes) > heard

    supervised(scene)


def test_names_mean_a_backend_a_model_or_one_process() -> None:
    async def scene(rig: Rig) -> None:
        for model, replica, backend in [("a", 0, "echo"), ("a", 1, "echo"), ("b", 0, "llama-cpp")]:
            await rig.supervisor.start(launch(model, replica, backend))
        named = rig.supervisor.named
        assert named("echo") == [("a", 0), ("a", 1)]
        assert named("a") == [("a", 0), ("a", 1)]
        assert named("a#1") == [("a", 1)]
        assert named("llama-cpp") == [("b", 0)]
        assert named("c") == named("a#7") == []

    supervised(scene)
