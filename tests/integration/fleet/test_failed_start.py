"""A backend that does not start, and a frontend that is killed while its worker tries."""

from pathlib import Path

from remuda.host.ports import free_port
from tests.support.images import image, layer
from tests.support.processes import Frontend, Json, Ranch
from tests.support.registry import HOST, registry_server
from tests.support.waiting import wait_until_blocking

# The test sees that it has begun, and says when it ends.
RUN = """#!/bin/sh
touch {folder}/begun
while [ ! -e {folder}/go-on ]; do sleep 0.1; done
echo 'a library is missing' >&2
exit 7
"""


def test_it_has_failed_though_nobody_was_there_for_the_reply(place: Ranch, tmp_path: Path) -> None:
    port = free_port(HOST)
    frontend = start(place, port)
    place.join(frontend.url, "node").wait_for("ready")
    frontend.wait_for("node")
    with registry_server(tmp_path) as registry:
        run = RUN.format(folder=tmp_path).encode()
        registry.pusher.push("fleet/broken", "v1", image([layer({"run.sh": run})]))
        wish = {"kind": "install", "backend": "broken", "uri": f"{registry.name}/fleet/broken:v1"}
        id = frontend.ask("POST", "/api/ops", wish).raise_for_status().json()["operation"]["id"]
        wait_until_blocking((tmp_path / "begun").exists, within=30, what="the start of the backend")
        frontend.kill()
        (tmp_path / "go-on").touch()
        frontend = start(place, port)
        step = first_attempt_over(frontend, id)
    assert step["state"] == "pending"  # It is tried again, as if the reply had come.
    assert step["problem"]["code"] == "start_failed"
    assert "a library is missing" in step["problem"]["message"]


def start(place: Ranch, port: int) -> Frontend:
    """With its bus, which is killed with it."""
    return place.frontend("frontend", "--port", str(port), "--auto-approve")


def first_attempt_over(frontend: Frontend, id: str) -> Json:
    def over() -> Json | None:
        [step] = frontend.get(f"/api/ops/{id}")["steps"]
        return step if step["attempts"][0].get("ended_at") else None

    return wait_until_blocking(over, within=60, what="the end of the first attempt")
