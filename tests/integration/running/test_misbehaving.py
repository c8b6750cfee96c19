"""Backends that become ready and then misbehave, each with what comes of it."""

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from tests.integration.running.rig import Rig
from tests.peers.backend_client import BackendClient
from tests.support.bad_backends import (
    DONE,
    EXIT_CODE,
    FLOOD_BYTES,
    Bad,
    grandchildren,
    tell,
    write_bad_backend,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MEMORY_MAX = 64 << 20  # By which the worker may grow under a flood.
GAP_MAX_S = 2.0


def bad(rig: Rig, kind: Bad) -> Path:
    return write_bad_backend(rig.yard.backend(kind), kind).parent


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def stop(rig: Rig, reply: Any, key: str = "m#0", **more: object) -> Any:
    return await rig.ask(
        "model.stop", model_name="m", process_key=key, expected_address=reply["address"], **more
    )


async def test_one_that_starts_slowly_is_told_as_starting_and_becomes_ready(rig: Rig) -> None:
    folder = bad(rig, Bad.STARTS_SLOWLY)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(rig.installed, Bad.STARTS_SLOWLY, model_id="m", op_id="o-1"))
        row = await rig.until_replica("m", lambda row: row["state"] == "starting" and row["address"])
        running = (await rig.ask("models.running"))["models"]
        work = rig.report()["work"]
        tell(folder)

    assert [model["instance"] for model in running] == [row["instance"]]
    assert [(one["op_id"], one["phase"]) for one in work] == [("o-1", "starting")]
    assert (await rig.until_ready("m"))["instance"] == row["instance"]


async def test_one_that_is_stopped_while_it_starts_ends_the_install(rig: Rig) -> None:
    bad(rig, Bad.STARTS_SLOWLY)
    replies: list[Any] = []

    async def install() -> None:
        replies.append(await rig.install(Bad.STARTS_SLOWLY, model_id="m"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install)
        await rig.until_replica("m", lambda row: row["state"] == "starting" and row["address"])
        await rig.tell("backend.stop", backend="m")

    assert replies[0] == {
        "success": False,
        "error": "starts-slowly could not be started for m: it was stopped while starting",
        "code": "backend_failed",
    }
    await wait_until(lambda: not rig.yard.alive())


async def test_whoever_waits_for_a_slow_start_is_told_that_the_worker_stops(rig: Rig) -> None:
    bad(rig, Bad.STARTS_SLOWLY)
    replies: list[Any] = []

    async def install() -> None:
        replies.append(await rig.install(Bad.STARTS_SLOWLY, model_id="m"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install)
        await rig.until_replica("m", lambda row: row["state"] == "starting" and row["address"])
        rig.worker.stop("nobody needs it any more")

    assert replies == [{"success": False, "error": "this worker is stopping", "code": "unavailable"}]
    await wait_until(lambda: not rig.yard.alive())


async def test_one_that_ignores_sigterm_is_killed_after_the_grace(rig: Rig) -> None:
    bad(rig, Bad.IGNORES_SIGTERM)
    reply = await rig.installed(Bad.IGNORES_SIGTERM, model_id="m")
    pid = rig.process("m").pid
    began = anyio.current_time()

    stopped = await stop(rig, reply, force=True)

    assert (stopped["freed"], stopped["terminated"], stopped.get("error", "")) == (False, True, "")
    assert anyio.current_time() - began >= rig.yard.timeouts.grace.total_seconds()
    assert gone(pid)


async def test_one_that_hangs_in_free_is_ended_and_the_reply_says_so(rig: Rig) -> None:
    bad(rig, Bad.HANGS_IN_FREE)
    reply = await rig.installed(Bad.HANGS_IN_FREE, model_id="m")

    stopped = await stop(rig, reply)

    assert (stopped["matched"], stopped["freed"], stopped["terminated"]) == (True, False, True)
    assert stopped["error"].startswith("the backend did not free its memory before it was ended: no answer")
    assert rig.yard.alive() == []


async def test_one_that_forks_leaves_no_grandchild(rig: Rig) -> None:
    folder = bad(rig, Bad.FORKS)
    reply = await rig.installed(Bad.FORKS, model_id="m")
    family = grandchildren(folder)
    assert not any(gone(pid) for pid in family)

    stopped = await stop(rig, reply, force=True)

    assert stopped["terminated"]
    assert all(gone(pid) for pid in family)


async def test_one_that_closes_its_port_is_replaced_by_another_process(rig: Rig) -> None:
    folder = bad(rig, Bad.CLOSES_PORT)
    first = await rig.installed(Bad.CLOSES_PORT, model_id="m")
    pid = rig.process("m").pid

    tell(folder)
    row = await rig.until_ready("m", restarts=1)

    assert row["instance"] != first["instance"]
    assert gone(pid)
    assert row["address"] != first["address"]  # Its old port rests.
    port = first["address"].rpartition(":")[2]
    waits = [one for account in rig.accounts for one in account.replicas if one.state == "waiting"]
    assert {one.trouble for one in waits} == {f"it closed its port {port} but is still running"}


async def test_one_that_dies_is_started_again_with_a_growing_delay_until_it_is_given_up(rig: Rig) -> None:
    folder = bad(rig, Bad.DIES)
    await rig.installed(Bad.DIES, model_id="m")
    instances = set()
    for life in range(3):
        instances.add((await rig.until_ready("m", restarts=life))["instance"])
        tell(folder)
    instances.add((await rig.until_ready("m", restarts=3))["instance"])
    tell(folder)
    row = await rig.until_replica("m", lambda row: row["state"] == "failed")

    assert len(instances) == 4
    assert row["trouble"] == (
        f"it ended with exit code {EXIT_CODE}; its last lines:\n  it was told to die;"
        " ended 4 times in a row within 60 s"
    )
    assert rig.yard.alive() == []
    assert (await rig.ask("models.running"))["models"] == []


async def test_one_that_was_given_up_starts_when_it_is_asked_for(rig: Rig) -> None:
    folder = bad(rig, Bad.DIES)
    before = await rig.installed(Bad.DIES, model_id="m")
    for life in range(4):
        await rig.until_ready("m", restarts=life)
        tell(folder)
    await rig.until_replica("m", lambda row: row["state"] == "failed")

    after = await rig.installed(Bad.DIES, model_id="m")

    assert after["instance"] != before["instance"]
    async with BackendClient(after["address"]) as client:
        assert await client.health() == "OK"


async def another_heartbeat(rig: Rig) -> None:
    count = len(rig.frontend.of("heartbeat"))
    rig.worker.report_changed()
    await wait_until(lambda: len(rig.frontend.of("heartbeat")) > count)


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(FLOOD_BYTES // 4, id="256 MiB"),
        pytest.param(FLOOD_BYTES, id="1 GiB", marks=pytest.mark.long),
    ],
)
async def test_a_flood_on_stderr_costs_neither_memory_nor_heartbeats(rig: Rig, flood: int) -> None:
    folder = bad(rig, Bad.FLOODS_STDERR)
    await rig.installed(Bad.FLOODS_STDERR, model_id="m")
    worker = psutil.Process()
    before, most, gaps = worker.memory_info().rss, 0, [0.0]
    tell(folder, str(flood))
    with anyio.fail_after(90):
        while not (folder / DONE).exists():
            began = anyio.current_time()
            await another_heartbeat(rig)
            gaps.append(anyio.current_time() - began)
            most = max(most, worker.memory_info().rss)

    assert most - before < MEMORY_MAX
    assert max(gaps) < GAP_MAX_S
    assert (await rig.ask("models.running"))["models"] != []
    kept = sum(path.stat().st_size for path in (rig.yard.folder / "logs").rglob("*") if path.is_file())
    assert 0 < kept <= 32 << 20
