"""`remuda backends` of a fleet, as people run it: a real frontend, worker, registry and gallery."""

import json
from collections.abc import Iterator

import pytest

from remuda.cli.exits import Exit
from tests.integration.cli.fleet_rig import FleetRig, fleet_rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetRig]:
    with fleet_rig(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def installed(rig: FleetRig) -> dict[str, list[str]]:
    """The nodes that have each backend."""
    backends = rig.json("backends", "list")["backends"]
    return {item["name"]: [node["node_name"] for node in item["nodes"]] for item in backends}


def operations(rig: FleetRig) -> object:
    """Everything that was ever asked for."""
    return rig.up.get("/api/ops?limit=1000")


def test_a_backend_is_installed_listed_and_removed(rig: FleetRig) -> None:
    op = rig.json("backends", "install", "echo")
    table = rig.remuda("backends").stdout

    assert (op["kind"], op["status"], op["counts"]) == ("install", "succeeded", {"succeeded": 1})
    assert [(step["node_name"], step["state"]) for step in op["steps"]] == [("up", "succeeded")]
    assert table.splitlines()[0].split() == ["NAME", "VERSION", "DIGEST", "NODES", "NEWS"]
    assert any(line.split()[0] == "echo" and "up" in line.split() for line in table.splitlines())

    removed = rig.remuda("backends", "remove", "echo", "--nodes", "up")

    assert removed.stdout == "remove echo: 1 of 1 node done\n"
    # What is over before anybody looks has no progress to tell of.
    assert removed.stderr.splitlines()[-1:] in ([], ["remove echo on up: done"])
    assert "echo" not in installed(rig)


def test_an_upgrade_happens_when_there_is_something_newer_and_then_no_more(rig: FleetRig) -> None:
    rig.push("shouter", 1)
    rig.remuda("backends", "install", "shouter")
    current = rig.remuda("backends", "upgrade", "shouter")
    assert current.stdout.startswith("upgrade shouter: 1 of 1 node done\n")

    rig.push("shouter", 2)
    upgrades = rig.json("backends", "upgrades", "--check")["upgrades"]
    [newer] = [one for one in upgrades if one["backend_name"] == "cpu-shouter"]
    done = rig.json("backends", "upgrade", "--all-backends", "--rolling", "--batch", "1")
    [item] = [one for one in rig.json("backends", "list")["backends"] if one["name"] == "cpu-shouter"]

    assert [op["status"] for op in done["operations"]] == ["succeeded"]
    assert done["operations"][0]["roll_out"]["canary"] is True
    assert item["nodes"][0]["digest"] == newer["available_digest"] != newer["installed_digest"]
    assert rig.remuda("backends", "upgrades").stdout == "everything is up to date (checked just now)\n"
    assert (
        rig.remuda("backends", "upgrade", "--all-backends").stdout
        == "everything is up to date (checked just now)\n"
    )


def test_another_tag_or_a_tag_that_moved_brings_another_version(rig: FleetRig) -> None:
    rig.remuda("backends", "install", rig.push("own", 1, tag="v1"), "--name", "mine")
    assert rig.installed_version("mine") == "1"
    rig.remuda("backends", "install", rig.push("own", 2, tag="v2"), "--name", "mine")
    assert rig.installed_version("mine") == "2"

    rig.push("own", 3, tag="v2")
    rig.remuda("backends", "install", rig.reference("own", "v2"), "--name", "mine")
    assert rig.installed_version("mine") == "3"

    rig.push("own", 4, tag="v2")
    [newer] = rig.json("backends", "upgrades", "--check")["upgrades"]
    assert (newer["backend_name"], newer["available_digest"] != newer["installed_digest"]) == ("mine", True)
    rig.remuda("backends", "upgrade", "mine")
    assert rig.installed_version("mine") == "4"
    assert rig.json("backends", "upgrades")["upgrades"] == []

    pulled = rig.push("own", 5, tag="v5")
    rig.remuda("backends", "pull", pulled, "--name", "mine")
    assert rig.installed_version("mine") == "5"
    rig.push("own", 6, tag="v5")
    rig.remuda("backends", "pull", pulled, "--name", "mine")
    assert rig.installed_version("mine") == "6"


def test_a_name_that_is_new_in_the_gallery_is_found_at_once(rig: FleetRig) -> None:
    rig.remuda("backends", "available")
    with rig.in_gallery("newcomer", rig.push("newcomer")):
        rig.remuda("backends", "install", "newcomer", "--nodes", "up")
    assert rig.installed_version("newcomer") == "1"
    rig.remuda("backends", "remove", "newcomer")


def test_what_could_not_be_asked_is_never_up_to_date(rig: FleetRig) -> None:
    rig.push("shouter", 1)
    rig.remuda("backends", "install", "shouter")
    checked = rig.json("backends", "upgrades", "--check")
    assert (checked["upgrades"], checked["unchecked"]) == ([], [])
    assert {one["source"] for one in checked["checked"]} == {"gallery mine", f"registry {rig.link_name}"}
    with rig.cut_off():
        unsure = rig.remuda("backends", "upgrades", "--check")
        everything = rig.remuda("backends", "upgrade", "--all-backends")
        told = rig.json("backends", "upgrades", "--check")["unchecked"]
    nothing = "nothing newer was found, but not everything could be checked\n"
    assert (unsure.stdout, everything.stdout) == (nothing, nothing)
    assert {one["source"] for one in told} == {"gallery mine", f"registry {rig.link_name}"}
    assert "could not be checked" in unsure.stderr
    assert all("cpu-shouter" in one["backends"] for one in told)


def test_a_server_that_ends_at_its_start_is_not_rolled_out(rig: FleetRig) -> None:
    rig.remuda("backends", "install", rig.push_server("server", 1, starts=True), "--name", "server")
    rig.push_server("server", 2, starts=False)
    op = rig.json("backends", "upgrade", "server", "--rolling", code=Exit.NOT_EVERYWHERE)
    [step] = op["steps"]
    assert step["state"] == "failed"
    assert "the new version does not start" in step["reason"]
    assert "the node was rolled back to sha256:" in step["reason"]
    assert rig.installed_version("server") == "1"

    refused = rig.remuda("backends", "upgrade", "server", code=Exit.REJECTED)
    assert "of server failed to start on up at " in refused.stderr
    assert "use --force to try again" in refused.stderr
    assert rig.installed_version("server") == "1"
    with rig.cut_off():
        unasked = rig.remuda("backends", "upgrade", "server", code=Exit.REJECTED)
    assert "could not be asked what " in unasked.stderr
    assert "try again when it can be reached, or use --force" in unasked.stderr
    everything = rig.remuda("backends", "upgrade", "--all-backends")
    assert everything.stdout == "nothing else is newer (checked just now)\n"
    assert "of server failed to start on up at " in everything.stderr
    upgrades = rig.json("backends", "upgrades", "--check")
    assert [one["backend_name"] for one in upgrades["upgrades"]] == []
    assert [(one["backend_name"], one["node_name"]) for one in upgrades["known_bad"]] == [("server", "up")]
    again = rig.remuda("backends", "upgrade", "server", "--force", code=Exit.NOT_EVERYWHERE)
    assert "the node was rolled back to sha256:" in again.stdout + again.stderr
    over = rig.remuda(
        "backends", "install", rig.reference("server"), "--name", "server", code=Exit.NOT_EVERYWHERE
    )
    assert "is in use again" in over.stdout + over.stderr
    assert rig.installed_version("server") == "1"

    rig.push_server("server", 3, starts=True)
    rig.remuda("backends", "upgrade", "server", "--rolling")
    assert rig.installed_version("server") == "3"
    rig.remuda("backends", "remove", "server")


def test_the_reference_that_was_installed_last_is_the_one_that_upgrades_ask(rig: FleetRig) -> None:
    rig.remuda("backends", "install", rig.push("twice", 1, tag="v1"), "--name", "twice")
    latest = rig.push("twice", 1)
    rig.remuda("backends", "install", latest, "--name", "twice")
    rig.push("twice", 2)
    rig.remuda("backends", "upgrade", "twice")
    assert rig.installed_version("twice") == "2"
    rig.remuda("backends", "remove", "twice")


def test_what_galleries_offer_is_shown_with_the_nodes_it_fits(rig: FleetRig) -> None:
    plain = rig.json("backends", "available")
    builds = rig.json("backends", "available", "--builds", "shouter")

    fits = {item["name"]: item["fits"] for item in plain["backends"]}
    assert plain["nodes"] == ["up"]
    assert (fits["shouter"], fits["gpu-only"]) == (["up"], [])
    assert "cpu-shouter" not in fits
    assert {item["name"]: item["fits"] for item in builds["backends"]} == {
        "shouter": ["up"],
        "cpu-shouter": ["up"],
        "cuda12-shouter": [],
    }
    row = next(line for line in rig.remuda("backends", "available").stdout.splitlines() if "gpu-only" in line)
    assert row.split() == ["gpu-only", "mine", "none", "-"]


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("nosuch",), Exit.NOT_FOUND, "no gallery has a backend called nosuch"),
        (("shouter", "--nodes", "upp"), Exit.NOT_FOUND, "did you mean up?"),
        (("shouter", "--selector", "room=moon"), Exit.REJECTED, "no node has the labels room=moon"),
        (("shouter", "--selector", "room"), Exit.REJECTED, "'room' is not key=value"),
        (("cuda12-shouter",), Exit.REJECTED, "install shouter instead: each node gets the build that fits"),
        (("gpu-only",), Exit.REJECTED, "up: gpu-only has no build for this machine"),
        (("file:///etc/passwd",), Exit.REJECTED, "on each node's own disk"),
        (("shouter", "--name", "x"), Exit.MISUSED, "a gallery names its backends"),
        (("shouter", "--nodes", "up", "--all"), Exit.MISUSED, "one of --nodes, --selector and --all"),
        (("shouter", "--timeout", "5"), Exit.MISUSED, "is not a duration"),
    ],
)
def test_what_cannot_be_installed_is_refused_and_nothing_is_begun(
    rig: FleetRig, words: tuple[str, ...], code: Exit, complaint: str
) -> None:
    before = operations(rig)

    refused = rig.remuda("backends", "install", *words, code=code)

    assert complaint in refused.stderr
    assert operations(rig) == before


def test_a_dry_run_says_what_would_be_done_and_does_nothing(rig: FleetRig) -> None:
    rig.push("shouter", 7)
    before = operations(rig)

    planned = rig.remuda("backends", "install", "shouter", "--dry-run").stdout

    assert planned.splitlines()[1].split()[:4] == ["up", "to", "do", "cpu-shouter"]
    assert "at most" in planned
    assert "DISK FREE" in planned
    assert operations(rig) == before


def test_the_same_key_asks_once(rig: FleetRig) -> None:
    words = ("backends", "install", "echo", "--idempotency-key", "once")

    first = rig.json(*words)
    again = rig.remuda(*words, "--no-wait", "--json")

    assert json.loads(again.stdout)["id"] == first["id"]
    assert f"this key was used before, for operation {first['id'][:8]}, which succeeded" in again.stderr


def test_a_node_that_is_not_ready_in_time_fails_by_name_and_reason_and_can_be_retried(rig: FleetRig) -> None:
    rig.push("patient")
    rig.remuda("nodes", "drain", "up")
    failed = rig.remuda(
        "backends", "install", "patient", "--nodes", "up", "--expires", "1s", code=Exit.NOT_EVERYWHERE
    )
    rig.remuda("nodes", "resume", "up")

    assert "install patient on up: waiting: " in failed.stderr
    assert failed.stdout.splitlines()[0] == "install patient: 0 of 1 node done, 1 failed"
    assert failed.stdout.splitlines()[1].startswith("  up: failed: ")
    hint = failed.stderr.splitlines()[-1]
    assert hint.startswith("hint: try those nodes again with: remuda ops retry ")

    id = hint.split()[-1]
    rig.remuda("ops", "retry", id, "--node", "up")
    assert rig.remuda("ops", "watch", id).stdout == "install patient: 1 of 1 node done\n"


def test_programs_can_watch_each_change(rig: FleetRig) -> None:
    rig.push("slow")

    lines = rig.remuda(
        "backends", "install", "slow", "--nodes", "up", "--json", "--watch"
    ).stdout.splitlines()

    events = [json.loads(line) for line in lines]
    assert {event["event"] for event in events[:-1]} <= {"op", "progress"}
    assert (events[-1]["event"], events[-1]["data"]["status"]) == ("end", "succeeded")


def test_backends_of_this_machine_need_no_frontend(rig: FleetRig) -> None:
    listed = rig.ranch.remuda("backends", "list", "--local", "--json", data="elsewhere")
    refused = rig.ranch.remuda("backends", "list", data="elsewhere")

    assert (listed.returncode, json.loads(listed.stdout)["backends"]) == (Exit.DONE, [])
    assert refused.returncode == Exit.UNREACHABLE


def test_backend_names_are_completed(rig: FleetRig) -> None:
    words = {"_REMUDA_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    offered = rig.ranch.remuda(**words, COMP_WORDS="remuda backends install gpu")

    assert "plain,gpu-only" in offered.stdout
