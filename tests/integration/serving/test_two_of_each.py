"""Two frontends and two workers, in processes and folders of their own: of one mind, and any may die."""

import socket
from contextlib import suppress
from functools import partial

import pytest

from tests.integration.serving.asking import add_echo, chat, open_stream
from tests.integration.serving.site import (
    Site,
    answered,
    at_once,
    of_model,
    wait_for_replicas,
    wait_until_unloaded,
)
from tests.support.processes import Frontend, Json
from tests.support.waiting import wait_until_blocking

NODE = "X-Remuda-Node"


def node_of(frontend: Frontend, model: str) -> str:
    answer = chat(frontend, model)
    assert answered(answer) == "one two three"
    return str(answer.headers[NODE])


@pytest.mark.parametrize("side", ["left", "right"])
def test_either_frontend_reaches_the_worker_that_has_the_model(pair: Site, side: str) -> None:
    add_echo(pair.a, f"on-{side}", selector={"side": side})
    assert [node_of(frontend, f"on-{side}") for frontend in pair.frontends] == [side, side]


def test_replicas_on_both_workers_take_turns_on_either_frontend(pair: Site) -> None:
    add_echo(pair.a, "both")
    node_of(pair.a, "both")
    pair.b.ask("POST", "/api/models/both/load").raise_for_status()
    found = wait_for_replicas(pair.a, "both", 2)

    assert {one["node"] for one in found} == {"left", "right"}
    for frontend in pair.frontends:
        wait_until_blocking(partial(turns_to, frontend, "both", {"left", "right"}), within=5)


def turns_to(frontend: Frontend, model: str, nodes: set[str]) -> bool:
    """Equals take turns, so two requests tell which there are of two."""
    return {node_of(frontend, model) for _ in range(2)} == nodes


def test_six_requests_at_once_cause_one_load_that_both_frontends_show(pair: Site) -> None:
    add_echo(pair.a, "six", "echo_load_delay_ms:1500")
    wait_until_blocking(lambda: "six" in str(pair.b.get("/api/models")))
    with at_once(6) as callers:
        answers = [callers.submit(chat, frontend, "six") for frontend in pair.frontends * 3]
        for frontend in pair.frontends:
            status = wait_until_blocking(partial(status_of, frontend, "six"), within=10)
            assert status["model"] == "six"
        assert [answered(answer.result()) for answer in answers] == ["one two three"] * 6

    # A request is answered as soon as it can be; that the operation is over is written a moment later.
    wait_until_blocking(lambda: {load["status"] for load in pair.loads_of("six")} == {"succeeded"})
    (load,) = pair.loads_of("six")
    assert len(pair.works_for(load["id"])) == 1
    assert len(of_model(pair.a, "six")) == 1


def status_of(frontend: Frontend, model: str) -> Json | None:
    answer = frontend.ask("GET", f"/api/models/{model}/load-status")
    return answer.json() if answer.status_code == 200 else None


def test_killed_worker_ends_its_stream_with_an_error_and_the_other_serves_all_else(pair: Site) -> None:
    for name in ("mobile", "new-1", "new-2", "new-3"):
        add_echo(pair.a, name)
    first = node_of(pair.a, "mobile")
    slowly = {"echo_delay_ms": "4000"}  # Long enough to be seen under way.
    with (
        open_stream(pair.b, "mobile", "word " * 200, metadata={"echo_token_rate": "20"}) as answer,
        at_once(4) as callers,
    ):
        whole = [callers.submit(chat, frontend, "both", metadata=slowly) for frontend in pair.frontends * 2]
        wait_until_blocking(lambda: sum(one["in_flight"] for one in of_model(pair.a, "both")) == 4, within=10)
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        pair.workers[first].kill()
        *_, error, end = [line for line in lines if line]
        assert [answered(one.result()) for one in whole] == ["one two three"] * 4

    assert "backend_failed" in error
    assert end == "data: [DONE]"
    other = {"left", "right"} - {first}
    assert {node_of(frontend, name) for frontend in pair.frontends for name in ("both", "mobile")} == other
    assert {node_of(pair.a, name) for name in ("new-1", "new-2", "new-3")} == other
    pair.revive(first)


def test_unload_waits_for_the_stream_on_the_other_frontend(pair: Site) -> None:
    add_echo(pair.a, "leaving")
    node_of(pair.a, "leaving")
    (replica,) = wait_for_replicas(pair.a, "leaving", 1)
    assert listens(replica["address"])
    with open_stream(pair.b, "leaving", "word " * 30, metadata={"echo_token_rate": "10"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        with at_once(1) as callers:
            unload = callers.submit(pair.place.remuda, "models", "unload", "leaving", data="a")
            wait_until_blocking(lambda: states(pair.b, "leaving") == ["unloading"], within=15)
            rest = list(lines)
            assert rest[-2] == "data: [DONE]"
            assert unload.result().returncode == 0, unload.result().stderr
    wait_until_unloaded(pair.a, "leaving")
    assert not listens(replica["address"]), "its process is gone before its row is"


def states(frontend: Frontend, model: str) -> list[str]:
    return [one["state"] for one in of_model(frontend, model)]


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
        return True
    return False


def test_changed_configuration_replaces_what_is_loaded_and_nothing_old_answers(pair: Site) -> None:
    add_echo(pair.a, "versioned", "echo_dim:8")
    node_of(pair.a, "versioned")
    (before,) = wait_for_replicas(pair.a, "versioned", 1)
    assert width(pair.b) == 8
    add_echo(pair.a, "versioned", "echo_dim:16")

    assert {width(pair.a) for _ in range(5)} == {16}
    wait_until_blocking(lambda: width(pair.b) == 16, within=5)
    assert {width(frontend) for frontend in pair.frontends * 3} == {16}
    (after,) = wait_until_blocking(
        lambda: wait_for_replicas(pair.a, "versioned", 1), within=30, what="the old one to go"
    )
    assert after["op_id"] != before["op_id"]


def width(frontend: Frontend) -> int:
    """Of an embedding, which the model's options decide."""
    body = {"model": "versioned", "input": "a"}
    answer = frontend.ask("POST", "/v1/embeddings", body).raise_for_status()
    return len(answer.json()["data"][0]["embedding"])


def test_drained_node_gets_no_more_requests(pair: Site) -> None:
    add_echo(pair.a, "driven")
    side = node_of(pair.a, "driven")
    other = ({"left", "right"} - {side}).pop()
    node = pair.a.nodes()[side]["id"]
    pair.a.ask("POST", f"/api/nodes/{node}/drain").raise_for_status()

    for frontend in pair.frontends:
        wait_until_blocking(partial(turns_to, frontend, "driven", {other}), within=5)
    assert [node_of(frontend, "driven") for frontend in pair.frontends * 2] == [other] * 4
    pair.a.ask("POST", f"/api/nodes/{node}/resume").raise_for_status()


def test_load_of_a_frontend_that_is_killed_is_taken_over(pair: Site) -> None:
    add_echo(pair.a, "orphan", "echo_load_delay_ms:3000")
    pair.a.ask("POST", "/api/models/orphan/load").raise_for_status()
    owner = wait_until_blocking(partial(loading_frontend, pair, "orphan"), within=15, what="a load")
    killed, other = (pair.a, pair.b) if owner == "a" else (pair.b, pair.a)
    killed.kill()

    assert answered(chat(other, "orphan")) == "one two three"
    setattr(pair, owner, pair.start_frontend(owner))
    found: Json = other.get("/api/ops?limit=1")["operations"][0]
    assert (found["model"], found["status"]) == ("orphan", "succeeded")
    assert len(of_model(other, "orphan")) == 1


def loading_frontend(pair: Site, model: str) -> str | None:
    """Who is in the middle of the backend's own load call."""
    owners = pair.query(
        "SELECT owner FROM attempts JOIN replicas USING (op_id) WHERE model = %s AND state = 'loading'", model
    )
    return pair.frontend_called(str(owners[0][0])) if owners else None


def test_a_model_that_takes_one_request_at_once_takes_one_of_both_frontends(pair: Site) -> None:
    add_echo(pair.a, "narrow", parallel=1)
    node_of(pair.a, "narrow")
    with at_once(1) as callers:
        with open_stream(pair.b, "narrow", "word " * 600, metadata={"echo_token_rate": "10"}) as answer:
            lines = answer.iter_lines()
            next(lines)
            wait_until_blocking(lambda: busy(pair.a, "narrow") == [1], what="the seat to be told")
            second = callers.submit(chat, pair.a, "narrow")
            wait_until_blocking(lambda: waiting(pair.a, "narrow") == 1, what="a request that waits")
            assert busy(pair.a, "narrow") == busy(pair.b, "narrow") == [1]
        assert answered(second.result()) == "one two three"
    told = pair.b.get(f"/api/requests/{second.result().headers['x-request-id']}/explanation")
    assert [wait["cause"] for wait in told["waits"]] == ["a free replica of narrow: the only one was busy"]


def busy(frontend: Frontend, model: str) -> list[int]:
    return [one["in_flight"] for one in of_model(frontend, model)]


def waiting(frontend: Frontend, model: str) -> int:
    """Requests of this frontend that wait for a replica."""
    line = f'remuda_inference_waiting{{model="{model}"}} '
    rows = frontend.ask("GET", "/metrics").text.splitlines()
    return sum(int(float(row.removeprefix(line))) for row in rows if row.startswith(line))
