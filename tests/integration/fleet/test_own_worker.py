"""Workers that end without a word: nobody is told that they run."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from remuda.host.ports import listen
from tests.integration.serving.asking import add_echo, chat
from tests.support.processes import Frontend, Json, Ranch
from tests.support.waiting import wait_until_blocking


def worker_finding(place: Ranch) -> Json:
    found = json.loads(place.remuda("doctor", "--json").stdout)["findings"]
    return next(one for one in found if one["check"] == "worker")


def why_offline(up: Frontend) -> str:
    """The reason of its own node, once that is offline."""
    return str(up.wait_for("up", "offline")["remuda"]["reasons"][0])


def test_own_worker_that_is_killed_and_cannot_start_again_is_nowhere_said_to_run(place: Ranch) -> None:
    first = place.up()
    add_echo(first, "parrot")
    assert chat(first, "parrot").status_code == 200
    first.kill()

    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        again = place.begin_up("up", "--http-addr", f"127.0.0.1:{port}")
        again.wait_until_it_answers()
        [replica] = again.get("/api/replicas")["replicas"]
        assert replica["state"] == "unreachable"
        wait_until_blocking(lambda: "API  " in again.shown, within=60, what="the banner")
        assert "is up." not in again.shown
        assert f"its worker does not run: port {port}" in again.shown
        assert f"port {port}" in why_offline(again)
        finding = worker_finding(place)
        assert (finding["level"], f"port {port}" in finding["message"]) == ("problem", True)
    boot = again.wait_for("up")["remuda"]["boot_id"]

    again.child("worker").kill()
    wait_until_blocking(
        lambda: "SIGKILL" in str(again.get("/api/history?node=up")), what="the end in the history"
    )
    wait_until_blocking(lambda: again.wait_for("up")["remuda"]["boot_id"] != boot, what="the next worker")
    assert "Traceback" not in again.log


def test_joined_worker_that_is_killed_is_found_out_by_its_closed_connections(
    up: Frontend, common: Ranch
) -> None:
    worker = common.join(up.url, "victim")
    worker.wait_for("ready")
    up.wait_for("victim")
    worker.kill()
    said = "its worker has stopped, its machine is off, or the network to it is down: check that machine"
    assert wait_until_blocking(
        lambda: said in str(up.nodes()["victim"]["remuda"]["reasons"][:1]), within=30, what=said
    )


@pytest.fixture
def small_disk(place: Ranch) -> Iterator[Path]:
    disk = place.folder / "up"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True, timeout=10).returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    place.clear()
    subprocess.run(["umount", str(disk)], check=True, timeout=10)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return filler


def test_full_disk_is_told_in_a_sentence_at_start_and_later(small_disk: Path, place: Ranch) -> None:
    filler = fill(small_disk)
    refused = place.remuda("up", "--port", "0")
    assert refused.returncode == 2
    assert f"error: the disk of {small_disk} is full (0.0 MiB free)\n" in refused.stderr
    filler.unlink()

    up = place.up()
    filler = fill(small_disk)
    up.child("worker").kill()
    sentence = f"error: the disk of {small_disk} is full"
    wait_until_blocking(lambda: sentence in up.log, within=60, what="the reason")
    assert "is full" in worker_finding(place)["message"]
    filler.unlink()
    wait_until_blocking(lambda: len(up.history("up")) > 1 and up.wait_for("up"), within=60, what="its return")
    assert "Traceback" not in up.log
