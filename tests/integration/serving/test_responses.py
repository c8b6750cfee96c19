"""Responses on frontends that share a database: kept on one, found on the other; and what becomes of those
that are worked on when their frontend is killed. Real processes, and a gRPC backend."""

from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from tests.integration.serving.asking import PATIENCE_S, add_echo, chat
from tests.integration.serving.site import Site
from tests.support.plain_http import PLAIN
from tests.support.processes import Frontend, Json
from tests.support.waiting import wait_until_blocking

LEASE_S = 45.0  # A lease of 30 s, and time to look.


def ask(frontend: Frontend, method: str, path: str = "", **body: object) -> Json:
    answer = httpx.request(
        method,
        f"{frontend.url}/v1/responses{path}",
        json=body or None,
        timeout=PATIENCE_S,
        trust_env=False,
        verify=PLAIN,
    )
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def text_of(response: Json) -> str:
    text: str = response["output"][-1]["content"][0]["text"]
    return text


@pytest.fixture
def other(pair: Site) -> Iterator[Frontend]:
    """To be killed; it is started again."""
    yield pair.b
    if not pair.b.running:
        pair.b = pair.start_frontend("b")


def echoing(pair: Site, name: str, *options: str) -> None:
    add_echo(pair.a, name, *options)
    for frontend in pair.frontends:
        wait_until_blocking(lambda f=frontend: chat(f, name).status_code == 200, within=15)  # type: ignore[misc]


def test_a_conversation_goes_on_on_another_frontend(pair: Site) -> None:
    echoing(pair, "kept")
    first = ask(pair.a, "POST", model="kept", input="one two")
    assert (text_of(first), first["status"]) == ("one two", "completed")
    assert ask(pair.b, "GET", f"/{first['id']}") == first
    second = ask(pair.b, "POST", model="kept", input="three", previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    ask(pair.b, "DELETE", f"/{first['id']}")
    gone = httpx.get(f"{pair.a.url}/v1/responses/{first['id']}", trust_env=False, verify=PLAIN)
    assert gone.status_code == 404


@pytest.mark.long
def test_a_response_whose_frontend_is_killed_has_failed(pair: Site, other: Frontend) -> None:
    echoing(pair, "orphaned", "echo_token_rate:1")
    asked = ask(other, "POST", model="orphaned", input="word " * 300, background=True)
    shown = partial(ask, pair.a, "GET", f"/{asked['id']}")
    wait_until_blocking(lambda: shown()["status"] == "in_progress", within=15, what="the work to begin")

    other.kill()

    wait_until_blocking(lambda: shown()["status"] == "failed", within=LEASE_S, what="the failure")
    assert "went away" in shown()["error"]["message"]
