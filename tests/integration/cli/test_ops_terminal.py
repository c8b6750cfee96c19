"""Operations on a fleet of two, and what a person at a terminal sees of them."""

import re
from collections.abc import Iterator

import pytest

from remuda.cli.exits import Exit
from tests.integration.cli.fleet_rig import MB, FleetRig, fleet_rig
from tests.support.terminals import at_terminal
from tests.support.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetRig]:
    """With a second node, `attic`."""
    with fleet_rig(tmp_path_factory.mktemp("fleet")) as made:
        environ = {"REMUDA_FORCE_META_BACKEND_CAPABILITY": "default"}
        made.ranch.join(made.up.url, "attic", "--labels", "room=top", **environ)
        made.up.wait_for("attic")
        yield made


def test_a_person_at_a_terminal_sees_a_bar_for_each_node(rig: FleetRig) -> None:
    rig.push("shouter", size=MB)
    with rig.slow_line(400_000):
        seen, code = at_terminal(rig.up.data_dir, "backends", "install", "shouter")

    assert code == Exit.DONE
    assert "install shouter: 2 of 2 nodes done" in seen
    for node in ("attic", "up"):
        assert f"{node} " in seen
    assert "downloading" in seen
    assert re.search(r"[0-9.]+ [KM]iB/s", seen), seen
    assert "━" in seen


def test_nodes_are_chosen_by_name_and_by_label(rig: FleetRig) -> None:
    labelled = rig.json("backends", "install", "echo", "--selector", "room=top")
    named = rig.json("backends", "install", "echo", "--nodes", "up,attic")
    everywhere = rig.json("backends", "remove", "echo", "--all")

    def nodes(op: dict[str, list[dict[str, str]]]) -> list[str]:
        return [step["node_name"] for step in op["steps"]]

    assert (nodes(labelled), nodes(named), nodes(everywhere)) == (["attic"], ["attic", "up"], ["attic", "up"])


def test_a_node_that_is_away_is_waited_for_and_the_others_are_done(rig: FleetRig) -> None:
    rig.remuda("nodes", "drain", "attic")

    left = rig.remuda("backends", "install", "echo", "--timeout", "1s", code=Exit.UNFINISHED)
    id = left.stderr.rsplit("operation ", 1)[1].split()[0]

    def state_on_up() -> str:
        steps = rig.json("ops", "show", id)["steps"]
        return next(str(step["state"]) for step in steps if step["node_name"] == "up")

    wait_until_blocking(lambda: state_on_up() == "succeeded", what="the other node to be done")
    left = rig.remuda("ops", "watch", id, "--timeout", "1s", code=Exit.UNFINISHED)
    assert left.stdout.splitlines()[0] == "install echo: 1 of 2 nodes done, 1 waiting"
    assert left.stdout.splitlines()[1].startswith("  attic: waiting: ")
    rig.remuda("nodes", "resume", "attic")
    assert rig.remuda("ops", "watch", id).stdout == "install echo: 2 of 2 nodes done\n"
