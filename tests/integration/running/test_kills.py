"""Processes that are killed or suspended from outside: what runs here is known and looked after again."""

import signal

import pytest

from tests.integration.running.light_backend import write_light_backend
from tests.integration.running.rig import Rig
from tests.peers.backend_client import BackendClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def light(rig: Rig) -> None:
    write_light_backend(rig.yard.backend("light"))


async def test_a_killed_backend_is_started_again_and_told_apart_from_the_old_one(rig: Rig) -> None:
    first = await rig.installed("light", model_id="m")
    rig.process("m").send_signal(signal.SIGKILL)
    row = await rig.until_ready("m", restarts=1)

    assert row["instance"] != first["instance"]
    troubles = {one.trouble for account in rig.accounts for one in account.replicas if one.state == "waiting"}
    assert [trouble.partition(": ")[0] for trouble in troubles] == ["it was killed by SIGKILL"]
    async with BackendClient(row["address"]) as client:
        assert await client.health() == "OK"
    again = await rig.installed("light", model_id="m")
    assert (again["instance"], again["address"]) == (row["instance"], row["address"])


async def test_a_stop_for_a_process_that_was_replaced_meanwhile_stops_nothing(rig: Rig) -> None:
    first = await rig.installed("light", model_id="m")
    rig.process("m").send_signal(signal.SIGKILL)
    await rig.until_ready("m", restarts=1)

    late = await rig.ask("model.stop", model_name="m", process_key="m#0", expected_address=first["address"])

    assert (late["matched"], late["terminated"]) == (True, False)
    assert len(rig.yard.alive()) == 1


async def test_a_suspended_backend_counts_as_busy_and_not_as_dead(rig: Rig) -> None:
    first = await rig.installed("light", model_id="m")
    process = rig.process("m")
    process.suspend()
    row = await rig.until_replica("m", lambda row: row["state"] == "unresponsive")
    running = (await rig.ask("models.running"))["models"]
    meanwhile = await rig.installed("light", model_id="m")
    process.resume()
    after = await rig.until_ready("m")

    assert row["trouble"] == f"no answer on port {first['address'].rpartition(':')[2]} within 1 s"
    assert [model["instance"] for model in running] == [first["instance"]]
    assert meanwhile == first
    assert (after["instance"], after.get("trouble", "")) == (first["instance"], "")


async def test_a_suspended_backend_can_be_stopped(rig: Rig) -> None:
    reply = await rig.installed("light", model_id="m")
    rig.process("m").suspend()

    stopped = await rig.ask(
        "model.stop", model_name="m", process_key="m#0", expected_address=reply["address"]
    )

    assert (stopped["freed"], stopped["terminated"]) == (False, True)
    assert rig.yard.alive() == []


async def test_one_that_was_killed_too_often_stays_listed_until_it_is_stopped(rig: Rig) -> None:
    await rig.installed("light", model_id="m")
    for life in range(4):
        await rig.until_ready("m", restarts=life)
        rig.process("m").kill()
    row = await rig.until_replica("m", lambda row: row["state"] == "failed")
    assert "killed by SIGKILL" in row["trouble"]

    await rig.tell("backend.stop", backend="m")

    await wait_until(lambda: rig.replica("m") is None)
