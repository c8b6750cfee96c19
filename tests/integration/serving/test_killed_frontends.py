"""An unload waits for every frontend that lives, and for one that is away only until that is proved."""

import signal
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.serving.asking import add_echo, chat, open_stream
from tests.integration.serving.site import Site, answered, at_once, of_model, wait_until_unloaded
from tests.support.processes import Frontend
from tests.support.waiting import wait_until_blocking

PROVED_S = 20.0  # A frontend that was killed says for 15 s that it lives; the rest is for looking.
TAKEN_OVER_S = 45.0


@pytest.fixture
def other(pair: Site) -> Iterator[Frontend]:
    """To be killed; it is started again."""
    yield pair.b
    if not pair.b.running:
        pair.b = pair.start_frontend("b")


def test_unload_waits_for_a_killed_frontend_only_until_it_is_known_to_be_dead(
    pair: Site, other: Frontend
) -> None:
    add_echo(pair.a, "outlived")
    for frontend in pair.frontends:
        wait_until_blocking(partial(answers, frontend, "outlived"), within=15)
    with open_stream(other, "outlived", "word " * 600, metadata={"echo_token_rate": "10"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        wait_until_blocking(lambda: in_flight(pair.a, "outlived") == 1, what="the other's word of its stream")
        other.kill()
        pair.a.ask("POST", "/api/models/outlived/unload").raise_for_status()
        wait_until_unloaded(pair.a, "outlived", within=PROVED_S)
        with pytest.raises(httpx.HTTPError):
            list(lines)


def test_frontend_that_was_away_during_an_unload_is_right_about_it_afterwards(
    pair: Site, other: Frontend
) -> None:
    """Its table still has the replica, and knows nothing of the one that was loaded since."""
    add_echo(pair.a, "moved")
    for frontend in pair.frontends:
        wait_until_blocking(partial(answers, frontend, "moved"), within=15)
    other.send(signal.SIGSTOP)
    try:
        pair.a.ask("POST", "/api/models/moved/unload").raise_for_status()
        wait_until_unloaded(pair.a, "moved", within=PROVED_S)
    finally:
        other.send(signal.SIGCONT)
    assert answered(chat(other, "moved")) == "one two three"
    assert len(pair.loads_of("moved")) == 2


ROLE = "third"


@pytest.fixture
def third(pair: Site) -> Iterator[Frontend]:
    """A frontend that has its own user at the database, and can be shut out there."""
    pair.query(f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD 'secret'")
    there = urlsplit(pair.database_url)
    url = there._replace(netloc=f"{ROLE}:secret@{there.hostname}:{there.port}").geturl()
    frontend = pair.start_frontend("c", url)
    yield frontend
    frontend.kill()


def shut_out_of_store(pair: Site) -> None:
    pair.query(f"ALTER ROLE {ROLE} NOLOGIN")
    pair.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", ROLE)


def test_frontend_cut_off_from_its_store_routes_no_longer_to_what_others_unload(
    pair: Site, third: Frontend
) -> None:
    for model in ("kept", "dropped"):
        add_echo(pair.a, model)
        for frontend in (pair.a, third):
            wait_until_blocking(partial(answers, frontend, model), within=15)
    shut_out_of_store(pair)
    pair.a.ask("POST", "/api/models/dropped/unload").raise_for_status()
    wait_until_unloaded(pair.a, "dropped", within=PROVED_S)
    refused = chat(third, "dropped")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unusable")
    assert not third.events("replica_suspected"), "nothing was sent there"
    assert answered(chat(third, "kept")) == "one two three"


def answers(frontend: Frontend, model: str) -> bool:
    return chat(frontend, model).status_code == 200


def in_flight(frontend: Frontend, model: str) -> int:
    return sum(one["in_flight"] for one in of_model(frontend, model))


def test_unload_of_a_frontend_that_is_killed_is_taken_over(pair: Site) -> None:
    add_echo(pair.a, "bequeathed")
    for frontend in pair.frontends:
        wait_until_blocking(partial(answers, frontend, "bequeathed"), within=15)
    with at_once(2) as callers:
        slowly = {"echo_token_rate": "10"}
        streams = [
            callers.submit(chat, frontend, "bequeathed", "word " * 30, metadata=slowly)
            for frontend in pair.frontends
        ]
        wait_until_blocking(lambda: in_flight(pair.a, "bequeathed") == 2, what="both streams")
        pair.a.ask("POST", "/api/models/bequeathed/unload").raise_for_status()
        owner = wait_until_blocking(partial(unloading_frontend, pair, "bequeathed"), within=15)
        killed, left = (pair.a, pair.b) if owner == "a" else (pair.b, pair.a)
        killed.kill()
        ended = [stream.exception() for stream in streams]
        assert sum(error is None for error in ended) == 1, "the stream of the other is not cut off"
    wait_until_unloaded(left, "bequeathed", within=TAKEN_OVER_S)
    setattr(pair, owner, pair.start_frontend(owner))


def unloading_frontend(pair: Site, model: str) -> str | None:
    """Who carries the unload out."""
    owners = pair.query(
        "SELECT attempts.owner FROM attempts JOIN operations ON operations.id = attempts.op_id "
        "WHERE operations.kind = 'unload' AND operations.finished_at IS NULL "
        "AND operations.source LIKE %s",
        f"%{model}%",
    )
    return pair.frontend_called(str(owners[0][0])) if owners else None
