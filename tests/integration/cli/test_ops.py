"""`remuda ops`, and leaving an operation that is waited for: against a real frontend, worker and registry."""

import json
import signal
from collections.abc import Iterator

import pytest

from remuda.cli.exits import Exit
from tests.integration.cli.fleet_rig import MB, FleetRig, fleet_rig
from tests.support.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetRig]:
    with fleet_rig(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def test_operations_are_listed_shown_put_away_and_kept_in_the_history(rig: FleetRig) -> None:
    id = rig.json("backends", "install", "echo")["id"]

    [row] = [line for line in rig.remuda("ops").stdout.splitlines() if line.startswith(id[:8])]
    page = rig.remuda("ops", "show", id[:6]).stdout

    assert row.split()[1:5] == ["install", "echo", "1/1", "succeeded"]
    assert "local" in row.split()
    assert ["Id", id] in [line.split() for line in page.splitlines()]
    assert "NODE" in page
    assert rig.json("ops", "show", id)["steps"][0]["node_name"] == "up"

    assert rig.json("ops", "list", "--kind", "install", "--all")["operations"][0]["id"] == id
    rig.remuda("ops", "list", "--kind", "load", "--model", "echo", code=Exit.NOT_FOUND)

    assert rig.remuda("ops", "dismiss", id[:8]).stdout == f"{id[:8]}: install echo: dismissed\n"
    assert id[:8] not in rig.remuda("ops", "list", "--backend", "echo", "--node", "up").stdout
    assert id[:8] in rig.remuda("ops", "history").stdout
    assert rig.remuda("ops", "history", "--clear").stdout == "finished operations cleared\n"
    assert id[:8] not in rig.remuda("ops", "history").stdout


def test_an_operation_that_is_not_there_is_not_found(rig: FleetRig) -> None:
    assert "there is no operation 'zzz'" in rig.remuda("ops", "show", "zzz", code=Exit.NOT_FOUND).stderr
    rig.remuda("ops", "watch", "00000000-0000-4000-8000-000000000000", code=Exit.NOT_FOUND)
    rig.remuda("ops", "cancel", "../nodes", code=Exit.NOT_FOUND)


def test_ctrl_c_leaves_the_operation_running_and_says_how_to_look(rig: FleetRig) -> None:
    rig.push("slow", size=2 * MB)
    with rig.slow_line():
        command = rig.begin("backends", "install", "slow", "--nodes", "up")
        id = rig.wait_until_at_work(command)["id"]

        command.send(signal.SIGINT)
        code = command.wait()

        assert code == Exit.INTERRUPTED
        assert f"no longer waiting; operation {id[:8]} continues" in command.log
        assert "error:" not in command.log
        assert f"hint: look with: remuda ops watch {id[:8]}; stop it with: remuda ops cancel" in command.log
        assert rig.json("ops", "show", id[:8])["status"] == "running"
    assert rig.remuda("ops", "watch", id[:8]).stdout == "install slow: 1 of 1 node done\n"


def test_after_its_timeout_a_command_leaves_too(rig: FleetRig) -> None:
    rig.push("slower", size=2 * MB)
    with rig.slow_line():
        left = rig.remuda(
            "backends", "install", "slower", "--nodes", "up", "--timeout", "2s", code=Exit.UNFINISHED
        )
    assert "error: not finished after 2 s; operation " in left.stderr
    id = left.stderr.split("operation ")[1].split()[0]
    assert rig.remuda("ops", "watch", id).stdout == "install slower: 1 of 1 node done\n"


def test_what_is_cancelled_by_others_ends_for_who_waits(rig: FleetRig) -> None:
    rig.push("slowest", size=4 * MB)
    with rig.slow_line():
        command = rig.begin("backends", "install", "slowest", "--nodes", "up")
        id = rig.wait_until_at_work(command)["id"]

        assert "is not finished" in rig.remuda("ops", "dismiss", id, code=Exit.REJECTED).stderr
        rig.remuda("ops", "cancel", id[:8])

        assert command.wait() == Exit.NOT_EVERYWHERE
    assert "it was cancelled" in command.log
    assert "  up: cancelled" in command.shown


def test_an_operation_is_paused_and_resumed(rig: FleetRig) -> None:
    rig.push("lazy", size=2 * MB)
    with rig.slow_line():
        command = rig.begin("backends", "install", "lazy", "--nodes", "up")
        id = rig.wait_until_at_work(command)["id"]
        rig.remuda("ops", "pause", id)
        wait_until_blocking(
            lambda: rig.json("ops", "show", id)["status"] == "paused", within=20, what="a pause"
        )

    assert rig.remuda("ops", "resume", id[:8]).stdout.startswith(f"{id[:8]}: install lazy: ")
    assert command.wait() == Exit.DONE


def test_watching_survives_a_restart_of_the_frontend(rig: FleetRig) -> None:
    rig.push("patient", size=3 * MB)
    everything = rig.begin("ops", "watch", "--json")
    with rig.slow_line():
        command = rig.begin("backends", "install", "patient", "--nodes", "up")
        rig.wait_until_at_work(command)

        rig.restart()

        wait_until_blocking(lambda: "connected to the frontend again" in command.log, within=30)
    assert command.wait(within=120) == Exit.DONE, "after the pause before the next attempt"
    assert "; trying again" in command.log
    assert command.shown == "install patient: 1 of 1 node done\n"
    wait_until_blocking(lambda: '"status": "succeeded"' in everything.shown.splitlines()[-1], within=10)
    events = [json.loads(line)["event"] for line in everything.shown.splitlines()]
    assert "lost" in events
    everything.send(signal.SIGINT)
    assert everything.wait() == Exit.INTERRUPTED
    assert "error:" not in everything.log


def test_ids_of_operations_are_completed(rig: FleetRig) -> None:
    id = rig.json("backends", "install", "echo", "--no-wait")["id"]
    words = {"_REMUDA_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    offered = rig.ranch.remuda(**words, COMP_WORDS=f"remuda ops show {id[:4]}")

    assert f"plain,{id[:8]}" in offered.stdout
