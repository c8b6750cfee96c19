"""A backend that does not start, and a frontend or a worker that is killed meanwhile."""

import sys
from collections.abc import Callable
from pathlib import Path

from remuda.host.ports import free_port
from tests.support import hasty
from tests.support.images import image, layer
from tests.support.processes import Frontend, Json, Ranch
from tests.support.registry import HOST, RegistryServer, registry_server
from tests.support.waiting import wait_until_blocking

GOOD = f'#!/bin/sh\nexec "{sys.executable}" -m remuda.backends.echo "$@"\n'
# The test sees that it has begun, and says when it ends.
RUN = """#!/bin/sh
touch {folder}/begun
while [ ! -e {folder}/go-on ]; do sleep 0.1; done
echo 'a library is missing' >&2
exit 7
"""


def test_it_has_failed_though_its_reply_was_lost(place: Ranch, tmp_path: Path) -> None:
    port = free_port(HOST)
    frontend = start(place, port)
    place.join(frontend.url, "node").wait_for("ready")
    frontend.wait_for("node")
    with registry_server(tmp_path) as registry:
        id = install(frontend, registry, "bad", RUN.format(folder=tmp_path))
        wait_until_blocking((tmp_path / "begun").exists, within=30, what="the start of the backend")
        frontend.kill()
        (tmp_path / "go-on").touch()
        frontend = start(place, port)
        step = until(frontend, id, lambda step: "ended_at" in step["attempts"][0])
    assert step["state"] == "pending"  # It is tried again, as if the reply had come.
    assert step["problem"]["code"] == "start_failed"
    assert "a library is missing" in step["problem"]["message"]


def test_version_before_it_is_in_use_again_though_its_worker_was_killed(place: Ranch, tmp_path: Path) -> None:
    frontend = start(place, free_port(HOST))
    worker = place.join(frontend.url, "node")
    worker.wait_for("ready")
    frontend.wait_for("node")
    installed = place.folder / "node/worker/backends/mine/run.sh"
    with registry_server(tmp_path) as registry:
        good = install(frontend, registry, "good", GOOD)
        until(frontend, good, lambda step: step["state"] == "succeeded")
        bad = install(frontend, registry, "bad", RUN.format(folder=tmp_path))
        wait_until_blocking((tmp_path / "begun").exists, within=30, what="the start of the backend")
        worker.kill()
        (tmp_path / "go-on").touch()
        place.worker("node")
        step = until(frontend, bad, lambda step: step["state"] == "failed")
    assert step["problem"]["code"] == "rolled_back"
    assert "a library is missing" in step["problem"]["message"]
    assert installed.read_text() == GOOD


def install(frontend: Frontend, registry: RegistryServer, tag: str, run: str) -> str:
    """The operation's id."""
    registry.pusher.push("fleet/mine", tag, image([layer({"run.sh": run.encode()})]))
    wish = {"kind": "install", "name": "mine", "uri": f"{registry.name}/fleet/mine:{tag}"}
    submitted = frontend.ask("POST", "/api/ops", wish).raise_for_status().json()
    return str(submitted["operation"]["id"])


def start(place: Ranch, port: int) -> Frontend:
    """With its bus, which is killed with it."""
    return place.frontend("frontend", "--port", str(port), "--auto-approve", program=hasty.__name__)


def until(frontend: Frontend, id: str, reached: Callable[[Json], bool]) -> Json:
    """The only step of the operation, once it is so far."""

    def found() -> Json | None:
        [step] = frontend.get(f"/api/ops/{id}")["steps"]
        return step if reached(step) else None

    return wait_until_blocking(found, within=60, what="the step to get so far")
