"""Which token opens what: an invited contract peer by its invite, our own worker by tokens of its own, and
neither by the token that all workers share. Real processes, and real gRPC backends."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import anyio
import httpx
import pytest
from websockets.sync.client import connect

from tests.integration.serving.asking import add_echo, chat
from tests.integration.serving.serving_worker import BACKEND
from tests.integration.serving.site import add_model, answered, of_model
from tests.peers.backend_client import BackendClient, CallFailed
from tests.peers.shell_backend.install import install_shell_backend
from tests.support.plain_http import PLAIN
from tests.support.processes import START_S, TOKEN, Frontend, Process, Ranch, ranch
from tests.support.waiting import wait_until_blocking

MODEL = "faraway"


@dataclass(frozen=True)
class Guest:
    """An invited peer at a frontend that shares no folder of models with anybody."""

    up: Frontend
    worker: Process
    invite: str

    @property
    def id(self) -> str:
        return str(self.up.nodes()["guest"]["id"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranch]:
    with ranch(tmp_path_factory.mktemp("tokens") / "ranch") as started:
        yield started


@pytest.fixture(scope="module")
def up(place: Ranch) -> Frontend:
    return place.up("up", "--expose-node-header", "--model-load-wait", "20s", "--no-auto-approve")


@pytest.fixture(scope="module")
def guest(place: Ranch, up: Frontend) -> Guest:
    run_file = install_shell_backend(place.folder / BACKEND)
    invited = up.ask("POST", "/api/nodes/invites", {"name": "guest"}).raise_for_status().json()
    worker = place.program(
        "tests.integration.serving.serving_worker",
        *("--register-to", up.url, "--nats-url", f"nats://127.0.0.1:{up.bus_port}"),
        *("--name", "guest", "--run-file", str(run_file)),
        LOCALAI_REGISTRATION_TOKEN=invited["registration_token"],
    )
    wait_until_blocking(lambda: worker.shown.startswith("ready"), within=START_S, what="the guest")
    # Nobody but the guest may have this file, and it does not tell which it has.
    add_model(up, MODEL, BACKEND, "faraway.gguf")
    return Guest(up, worker, invited["registration_token"])


def refusal(address: str, token: str) -> str:
    """How a gRPC backend refuses this token; empty: it does not."""

    async def ask() -> str:
        try:
            async with BackendClient(address, token) as client:
                await client.health()
        except CallFailed as failed:
            return failed.code
        return ""

    return anyio.run(ask)


# An invited peer.


def test_backend_of_an_invited_peer_is_called_with_its_invite(guest: Guest) -> None:
    """It also loads a model whose file the frontend does not have: it is told no path, only the name."""
    answer = chat(guest.up, MODEL)

    assert answered(answer) == "one two three"
    assert answer.headers["X-Remuda-Node"] == "guest"
    assert "loading 'faraway.gguf' from '' in ''" in guest.worker.log
    (replica,) = of_model(guest.up, MODEL)
    assert refusal(replica["address"], guest.invite) == ""
    assert refusal(replica["address"], TOKEN) == "UNAUTHENTICATED"


def test_logs_of_an_invited_peer_are_fetched_with_its_invite(guest: Guest) -> None:
    assert answered(chat(guest.up, MODEL)) == "one two three"
    root = f"/api/nodes/{guest.id}/backend-logs"
    assert guest.up.get(root) == [MODEL]
    lines = guest.up.get(f"{root}/{MODEL}")
    assert ("stdout", "loading 'faraway.gguf' from '' in ''") in [
        (line["stream"], line["text"]) for line in lines
    ]
    assert guest.up.get(f"{root}/{MODEL}%230?tail=1&stream=stdout") == lines[-1:]
    assert guest.up.get(f"{root}/never-loaded") == []
    server = f"http://{guest.up.nodes()['guest']['http_address']}/v1/backend-logs"
    for token, status in ((TOKEN, 401), (guest.invite, 200)):
        bearer = {"Authorization": f"Bearer {token}"}
        assert httpx.get(server, headers=bearer, trust_env=False, verify=PLAIN).status_code == status


def test_logs_of_a_peer_are_followed_on_a_websocket(guest: Guest) -> None:
    assert answered(chat(guest.up, MODEL)) == "one two three"
    url = f"{guest.up.url.replace('http', 'ws', 1)}/ws/nodes/{guest.id}/backend-logs/{MODEL}"
    with connect(url, proxy=None) as socket:
        known = json.loads(socket.recv(timeout=START_S))
        assert (known["type"], known["lines"][-1]["text"]) == (
            "initial",
            "loading 'faraway.gguf' from '' in ''",
        )
        guest.up.ask("POST", f"/api/nodes/{guest.id}/models/unload", {"model_name": MODEL}).raise_for_status()
        assert of_model(guest.up, MODEL) == []  # The answer says that it is unloaded.
        assert answered(chat(guest.up, MODEL)) == "one two three"  # Another process, which says so.
        new = json.loads(socket.recv(timeout=START_S))
        assert (new["type"], new["line"]["stream"]) == ("line", "stdout")


# Our own worker.


def test_backends_of_our_worker_have_a_token_of_their_own(up: Frontend, place: Ranch) -> None:
    add_echo(up)
    assert answered(chat(up, "echo")) == "one two three"
    (replica,) = of_model(up, "echo")
    (token,) = {
        process.environ()["LOCALAI_GRPC_AUTH_TOKEN"]
        for process in place.processes("up")
        if "LOCALAI_GRPC_AUTH_TOKEN" in process.environ()
    }
    assert token != TOKEN
    assert refusal(replica["address"], token) == ""
    assert refusal(replica["address"], TOKEN) == "UNAUTHENTICATED"
    node = up.nodes()["up"]
    server = f"http://{node['http_address']}/v1/backend-logs"
    for shut in (TOKEN, token):
        bearer = {"Authorization": f"Bearer {shut}"}
        assert httpx.get(server, headers=bearer, trust_env=False, verify=PLAIN).status_code == 401
    assert up.get(f"/api/nodes/{node['id']}/backend-logs") == ["echo"]
    for useless in (TOKEN, token):
        assert up.ask("POST", f"/api/node/{node['id']}/drain", {}, key=useless).status_code == 401
