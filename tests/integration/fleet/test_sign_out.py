"""Who signs out at one frontend is out at all of them: copies of the cookie open nothing, and what they have
opened ends. Two frontends and a worker, all real."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from remuda.gateway.sessions import COOKIE
from tests.integration.fleet.services import served
from tests.integration.serving.asking import add_echo
from tests.support.nats_servers import plain_server
from tests.support.plain_http import PLAIN
from tests.support.postgres import postgres_server
from tests.support.processes import Frontend, ranch
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.long
CONSOLE = {"X-Remuda-Console": "1"}
CHAT = "/v1/chat/completions"
WITHIN_S = 60.0


@pytest.fixture
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Frontend, Frontend]]:
    folder = tmp_path_factory.mktemp("sign-out")
    with (
        ranch(folder / "ranch") as place,
        postgres_server() as postgres,
        served(plain_server(folder)) as bus,
    ):
        services = {"REMUDA_DATABASE_URL": postgres.new_database(), "REMUDA_NATS_URL": bus.url}
        a, b = (
            place.frontend(name, "--host", "0.0.0.0", "--auto-approve", **services) for name in ("a", "b")
        )
        place.worker("w", "--name", "w", "--register-to", a.url, REMUDA_NATS_URL=bus.url)
        b.wait_for("w")
        yield a, b


def browser(frontend: Frontend) -> httpx.Client:
    return httpx.Client(
        base_url=frontend.url, headers=CONSOLE, trust_env=False, verify=PLAIN, timeout=WITHIN_S
    )


def test_signing_out_at_one_frontend_ends_what_is_open_at_the_other(two: tuple[Frontend, Frontend]) -> None:
    a, b = two
    add_echo(a)
    add_echo(a, "slow", "echo_token_rate:1")
    asked = {"model": "echo", "messages": [{"role": "user", "content": "word " * 300}]}
    a.ask("POST", CHAT, asked).raise_for_status()
    key = a.ask("POST", "/api/keys", {"name": "ana", "scope": "admin"}).raise_for_status().json()["key"]
    node = a.nodes()["w"]["id"]
    with ExitStack() as stack:
        at_a, at_b = (stack.enter_context(browser(one)) for one in (a, b))
        at_a.post("/api/session", json={"key": key}).raise_for_status()
        at_b.cookies.set(COOKIE, at_a.cookies[COOKIE])
        paths = (
            "/api/events",
            "/api/ops/events?wait_s=3600",
            f"/api/nodes/{node}/backend-logs/echo?follow=true",
        )
        wait_until_blocking(lambda: at_b.get("/api/nodes").status_code == 200, what="b to know the key")
        streams = [stack.enter_context(at_b.stream("GET", path)) for path in paths]
        streams.append(
            stack.enter_context(at_b.stream("POST", CHAT, json={**asked, "model": "slow", "stream": True}))
        )
        readers = [stream.raise_for_status().iter_text() for stream in streams]
        for reader in readers:
            assert next(reader)
        at_a.delete("/api/session").raise_for_status()
        ends = ["".join(reader) for reader in readers]  # Each ends, and properly.
        assert "session is over" in ends.pop(), "what the model was writing"
        end = json.loads(ends[-1].rpartition("event: end\ndata: ")[2])
        assert (end["code"], "session is over" in end["message"]) == ("unauthorized", True)
        assert at_b.get("/api/nodes").status_code == 401
        assert at_b.post("/api/keys", json={"name": "eve", "scope": "admin"}).status_code == 401
