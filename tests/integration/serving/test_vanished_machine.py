"""A machine that vanishes without a word: no connection is reset, nothing is refused, nothing comes back."""

import os
import sys
from pathlib import Path

import httpx
import pytest

from remuda.host.ports import free_port
from tests.integration.serving.asking import PATIENCE_S, add_echo, chat_body
from tests.support.namespaces import Machine, two_machines
from tests.support.plain_http import PLAIN
from tests.support.processes import Frontend, Ranch, ranch

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may make network namespaces"
)


def answering_node(up: Frontend, model: str) -> str:
    answer = httpx.post(
        f"{up.url}/v1/chat/completions",
        json=chat_body(model),
        headers={"Authorization": f"Bearer {up.api_key}"},
        timeout=PATIENCE_S,
        trust_env=False,
        verify=PLAIN,
    )
    assert answer.status_code == 200, answer.text
    return str(answer.headers["X-Remuda-Node"])


def set_drained(up: Frontend, name: str, verb: str) -> None:
    up.ask("POST", f"/api/nodes/{up.nodes()[name]['id']}/{verb}").raise_for_status()


def answering_before_and_after(place: Ranch, here: Machine, there: Machine) -> tuple[str, str]:
    """The nodes that answer while the far one is there, and when it has vanished."""
    port = free_port(here.address)
    url = f"http://{here.address}:{port}"
    options = ("--lan", "--port", str(port), "--public-url", url, "--auto-approve", "--expose-node-header")
    up = place.up("near", *options)
    there.run(place.join, url, "far").wait_for("ready")
    up.wait_for("far")
    add_echo(up, "movable")
    set_drained(up, "near", "drain")
    before = answering_node(up, "movable")
    set_drained(up, "near", "resume")
    there.drop_all_for(here)
    return before, answering_node(up, "movable")


def test_request_for_a_replica_on_a_vanished_machine_is_answered_by_another(tmp_path: Path) -> None:
    """Its connection is open. How long that takes is bounded by upstreams.sockets and router.suspects."""
    with two_machines() as (here, there), ranch(tmp_path / "ranch") as place:
        assert here.run(answering_before_and_after, place, here, there) == ("far", "near")
