"""Without database and bus loaded models go on answering, what cannot be answered is refused in time, and
everything recovers by itself."""

import os
import signal
import time
from functools import partial

import pytest

from tests.integration.serving.asking import add_echo, chat, open_stream, stream
from tests.integration.serving.site import Site, answered, at_once
from tests.support.processes import Frontend
from tests.support.waiting import wait_until_blocking

REFUSED_WITHIN_S = 15.0  # More than a call to the store may take, and less than two of them.


@pytest.fixture(scope="module", autouse=True)
def models(pair: Site) -> None:
    for name in ("loaded", "unloaded"):
        add_echo(pair.a, name)
    for frontend in pair.frontends:
        wait_until_blocking(partial(answers, frontend, "loaded"), within=15)


def answers(frontend: Frontend, model: str) -> bool:
    return chat(frontend, model).status_code == 200


def assert_serving(pair: Site) -> None:
    for frontend in pair.frontends:
        assert answered(chat(frontend, "loaded")) == "one two three"
        streamed = stream(frontend, "loaded")
        assert (streamed.text, streamed.done) == ("one two three", True)


def assert_refusing(pair: Site) -> None:
    """However many ask for what cannot be loaded now, each is told so in time."""
    began_s = time.monotonic()
    with at_once(6) as callers:
        refused = list(callers.map(partial(chat, model="unloaded"), pair.frontends * 3))

    assert {answer.status_code for answer in refused} == {503}
    assert all(answer.json()["error"]["message"] for answer in refused)
    assert time.monotonic() - began_s < REFUSED_WITHIN_S


def test_hung_services_stop_no_loaded_model(pair: Site) -> None:
    with open_stream(pair.a, "loaded", "word " * 10, metadata={"echo_token_rate": "5"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        pair.postgres.freeze()
        os.kill(pair.bus.pid, signal.SIGSTOP)
        try:
            assert [line for line in lines if line][-1] == "data: [DONE]"
            assert_serving(pair)
            assert_refusing(pair)
        finally:
            os.kill(pair.bus.pid, signal.SIGCONT)
            pair.postgres.thaw()

    wait_until_blocking(partial(answers, pair.b, "loaded"), within=5)


def test_dead_services_stop_no_loaded_model_and_their_return_heals_everything(pair: Site) -> None:
    pair.bus.kill()
    pair.postgres.kill()
    assert_serving(pair)
    assert_refusing(pair)
    assert_serving(pair)

    pair.postgres.start()
    pair.bus = pair.start_bus()
    for frontend in pair.frontends:
        wait_until_blocking(partial(answers, frontend, "unloaded"), within=60, what="the cold path again")
    assert_serving(pair)
    assert set(pair.a.statuses().values()) == {"healthy"}
