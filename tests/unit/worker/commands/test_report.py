"""What the worker's reports tell, and when."""

from pathlib import Path

import anyio
import pytest

from remuda.wire import subjects
from remuda.wire.backends import BackendDelete, BackendDeleteReply, BackendInstall
from remuda.wire.nodes import RunningReplica
from remuda.worker.processes.model import ProcessPhase, Protocol
from tests.support.commands_rig import Rig, rigged
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_account_lists_replicas_with_instance_state_and_trouble(rig: Rig) -> None:
    rig.live(
        "a#1", "vllm", protocol=Protocol.HTTP, phase=ProcessPhase.WAITING, restarts=2, trouble="it crashed"
    )
    ready = rig.live("b#0", "echo")

    assert rig.commands.report().replicas == (
        RunningReplica(
            model_id="a",
            replica_index=1,
            backend="vllm",
            address="gpu-1.example:50050",
            state="waiting",
            instance="instance-51000",
            protocol="http",
            restarts=2,
            trouble="it crashed",
        ),
        RunningReplica(
            model_id="b",
            replica_index=0,
            backend="echo",
            address=f"gpu-1.example:{ready.port}",
            state="ready",
            instance=ready.instance,
        ),
    )


async def test_installed_backend_appears_in_the_account_and_is_news(rig: Rig) -> None:
    rig.offer("echo")
    before = rig.changes

    await rig.install(BackendInstall(backend="echo"))
    await wait_until(lambda: rig.commands.report().installed)

    [told] = rig.commands.report().installed
    assert told.name == "echo"
    assert told.uri.startswith("file://")
    assert told.installed_at
    assert rig.changes > before


async def test_what_another_process_registers_is_news_at_once(rig: Rig) -> None:
    """As `remuda backends register` does, beside the worker, without a message to it."""
    await rig.depot.register("mine", "protocol: http\ncommand: [serve, '{port}']\n")
    reported = await wait_until(lambda: rig.commands.report().installed)
    assert [one.name for one in reported] == ["mine"]
    await rig.depot.remove("mine")
    await wait_until(lambda: rig.commands.report().installed == ())


async def test_server_that_nothing_could_be_proven_with_is_told_until_a_model_has_run_with_it(
    rig: Rig,
) -> None:
    def unprovable() -> dict[str, bool]:
        return {one.name: one.unprovable for one in rig.commands.report().installed}

    serves = "protocol: http\ncommand: [serve, '{port}', '{model_path}']\n"
    await rig.depot.register("alone", f"{serves}check: [serve, '{{port}}']\n")
    await rig.depot.register("needy", serves)
    await wait_until(lambda: unprovable() == {"alone": False, "needy": True})
    checks = {one.name: one.start_check for one in rig.commands.report().installed}
    assert checks == {"alone": "unchecked", "needy": ""}
    rig.http_backends.add("needy")
    await rig.install(BackendInstall(backend="needy", model_id="m", model_path="org/m", protocol="http"))
    await wait_until(lambda: unprovable() == {"alone": False, "needy": False})


async def test_report_tells_how_the_last_start_went_also_after_a_restart(tmp_path: Path) -> None:
    def told(rig: Rig) -> list[tuple[str, str]]:
        return [(one.start_check, one.start_error) for one in rig.commands.report().installed]

    why = "echo did not start: it ended with exit code 3"
    install = BackendInstall(backend="echo", op_id="o-1")
    async with rigged(tmp_path) as rig:
        rig.offer("echo")
        rig.supervision.fails, rig.supervision.readiness = why, anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.install, install)
            await wait_until(lambda: told(rig) == [("unchecked", "")])
            rig.supervision.readiness.set()
        assert [one.start_check for one in rig.delivered[-1].installed] == ["failed"], "before the reply"
        assert [one.op_id for one in rig.delivered[-1].work] == ["o-1"], "it is not over before that is told"
    async with rigged(tmp_path) as rig:
        await wait_until(lambda: told(rig) == [("failed", why)])
        await rig.install(install)
        await wait_until(lambda: told(rig) == [("started", "")])
        rig.supervision.table.clear()
        rig.supervision.fails = why
        await rig.install(BackendInstall(backend="echo", model_id="m"))
        await wait_until(lambda: told(rig) == [("failed", why)])


async def test_alias_of_an_installed_backend_is_told(rig: Rig) -> None:
    uri = f"file://{rig.source('x')}"
    await rig.install(BackendInstall(backend="cpu-echo", uri=uri, alias="echo"))
    await wait_until(lambda: rig.commands.report().installed)

    [told] = rig.commands.report().installed
    assert (told.name, told.alias) == ("cpu-echo", "echo")


async def test_work_in_hand_is_told_while_it_lasts_and_its_begin_and_end_are_news(rig: Rig) -> None:
    rig.offer("echo")
    rig.depot.gates["echo"] = anyio.Event()
    before = rig.changes

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.install, BackendInstall(backend="echo", op_id="o-1", attempt=3))
        await rig.depot.reached["echo"].wait()
        [work] = rig.commands.report().work
        begun = rig.changes
        rig.depot.gates["echo"].set()

    assert (work.op_id, work.attempt, work.kind, work.phase) == ("o-1", 3, "install", "resolving")
    assert before < begun < rig.changes
    assert rig.commands.report().work == ()


async def test_the_frontend_knows_what_was_installed_before_it_has_the_reply(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", op_id="o-1", attempt=1))
    await rig.ask(
        subjects.backend_delete, BackendDelete(backend="echo", op_id="o-2", attempt=1), BackendDeleteReply
    )

    told = [([one.name for one in report.installed], report.work) for report in rig.delivered]
    assert [(names, [work.op_id for work in works]) for names, works in told] == [
        (["echo"], ["o-1"]),
        ([], ["o-2"]),
    ]


async def test_a_model_is_not_kept_waiting_for_a_report(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen", op_id="o-1", attempt=1))

    assert rig.delivered == []
