"""Machines that join: by one command, under a name of their own, and with approval where that is on."""

import json
from pathlib import Path

import pytest

from remuda.host.folder import DataFolder
from tests.support.processes import Frontend, Ranch


def test_second_worker_joins_and_both_are_shown(up: Frontend, common: Ranch) -> None:
    common.join(up.url, "second")
    up.wait_for("second")
    shown = json.loads(common.invoke("nodes", "--json").stdout)
    nodes = {node["name"]: node for node in shown["nodes"]}
    assert nodes["up"]["status"] == nodes["second"]["status"] == "healthy"
    assert nodes["up"]["http_address"] != nodes["second"]["http_address"]


def test_name_of_another_machine_is_refused_with_the_way_out(up: Frontend, common: Ranch) -> None:
    common.join(up.url, "owner")
    held = up.wait_for("owner")
    imposter = common.join(up.url, "imposter", "--name", "owner")
    assert imposter.wait() == 6
    assert "the name 'owner' belongs to another machine" in imposter.log
    assert "--name" in imposter.log
    assert up.nodes()["owner"]["remuda"]["boot_id"] == held["remuda"]["boot_id"]


def test_worker_alone_resumes_what_was_joined(up: Frontend, common: Ranch) -> None:
    joined = common.join(up.url, "resumed", "--labels", "rack=7")
    before = up.wait_for("resumed")
    assert joined.stop() == 0
    assert up.nodes()["resumed"]["status"] == "offline"
    common.worker("resumed", REMUDA_REGISTRATION_TOKEN="")
    after = up.wait_for("resumed")
    assert after["id"] == before["id"]
    assert after["labels"]["rack"] == "7"


def test_wrong_token_ends_it_at_once(up: Frontend, common: Ranch) -> None:
    stranger = common.join(up.url, "stranger", REMUDA_REGISTRATION_TOKEN="guessed")
    assert stranger.wait() == 4
    assert "rejected the registration token" in stranger.log
    assert "--token" in stranger.log
    assert "guessed" not in stranger.log
    assert "stranger" not in up.nodes()
    assert not DataFolder(common.folder / "stranger").joined.exists(), "nothing is remembered of it"


def test_a_service_without_a_service_manager_is_refused_before_anything_is_kept(
    up: Frontend, common: Ranch
) -> None:
    if Path("/run/systemd/system").is_dir():
        pytest.skip("this machine has one")
    done = common.invoke("join", up.url, "--service", data="serviceless")
    assert done.exit_code == 2
    assert "neither systemd nor launchd" in done.stderr
    assert not DataFolder(common.folder / "serviceless").joined.exists()
    assert "serviceless" not in up.nodes()


def test_a_machine_that_leaves_says_goodbye_and_forgets(up: Frontend, common: Ranch) -> None:
    worker = common.join(up.url, "leaver")
    up.wait_for("leaver")
    folder = DataFolder(common.folder / "leaver")
    assert folder.joined.exists()
    done = common.invoke("leave", data="leaver")
    assert (done.exit_code, worker.wait()) == (0, 0), done.stderr
    assert "remuda nodes remove leaver" in done.stdout
    assert up.nodes()["leaver"]["status"] == "offline"
    assert not folder.joined.exists()
    again = common.invoke("leave", data="leaver")
    assert again.exit_code == 2
    assert "has not joined a fleet" in again.stderr
    said = up.nodes()["leaver"]["remuda"]["reasons"]
    assert said == ["left the fleet; remove it with: remuda nodes remove leaver"]
    worker = common.join(up.url, "leaver")  # The name is still its own.
    up.wait_for("leaver")

    worker.kill()  # Now it cannot say goodbye itself.
    done = common.invoke("leave", data="leaver")
    assert (done.exit_code, "could not be notified" in done.stdout) == (0, False), done.stderr
    assert up.nodes()["leaver"]["remuda"]["reasons"] == said


def test_worker_of_a_removed_node_ends_and_says_why(up: Frontend, common: Ranch) -> None:
    worker = common.join(up.url, "unwanted")
    node = up.wait_for("unwanted")
    up.ask("DELETE", f"/api/nodes/{node['id']}").raise_for_status()
    assert worker.wait() == 0, "a service manager does not start it again"
    removal = f"this node was removed by an administrator on {up.url}"
    assert removal in worker.log
    again = f"join again with: remuda join {up.url} --token TOKEN"
    assert again in worker.log
    found = json.loads(common.invoke("doctor", "--json", data="unwanted").stdout)["findings"]
    said = [one for one in found if one["check"] == "worker"]
    assert [(one["message"], one["remedy"]) for one in said] == [(removal, again)]
    common.join(up.url, "unwanted")
    up.wait_for("unwanted")
    assert not DataFolder(common.folder / "unwanted").removed.exists()


def test_worker_waits_for_approval_and_then_gets_on_the_bus(place: Ranch) -> None:
    frontend = place.frontend("frontend")
    worker = place.join(frontend.url, "applicant")
    waiting = worker.wait_for("waiting for approval")
    assert frontend.nodes()["applicant"]["status"] == "pending"
    done = place.invoke("nodes", "approve", "applicant", data="frontend")
    assert done.exit_code == 0, done.stderr
    assert worker.wait_for("ready")["node"] == waiting["node"]
    assert frontend.wait_for("applicant")["id"] == waiting["node"]


def test_bus_is_told_under_the_host_that_was_dialled(up: Frontend, common: Ranch) -> None:
    worker = common.join(up.url.replace("127.0.0.1", "localhost"), "by-name")
    worker.wait_for("ready")
    assert worker.events("bus_connected")[-1]["servers"] == f"nats://localhost:{up.bus_port}"
