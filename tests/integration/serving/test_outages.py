"""Without database and bus loaded models go on answering, what cannot be answered is refused in time, and
everything recovers by itself."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from tests.integration.serving.asking import add_echo, chat, open_stream, process_at, stream
from tests.integration.serving.site import Site, answered, at_once, wait_for_replicas
from tests.support.processes import Frontend, Worker
from tests.support.waiting import wait_until_blocking

REFUSED_WITHIN_S = 15.0  # More than a call to the store may take, and less than two of them.


@pytest.fixture(scope="module", autouse=True)
def models(pair: Site) -> None:
    for name in ("loaded", "unloaded", "replaced"):
        add_echo(pair.a, name)
    for frontend in pair.frontends:
        for name in ("loaded", "replaced"):
            wait_until_blocking(partial(answers, frontend, name), within=15)


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


@contextmanager
def another_process_at(worker: Worker, address: str) -> Iterator[None]:
    """The process there is killed, and one that its worker does not know answers on its port instead."""
    process = process_at(worker, address)
    command = process.cmdline()
    # Without the marks of the worker's own: it would end this one, and everybody in its session.
    environ = {name: value for name, value in process.environ().items() if "REMUDA_PROCESS" not in name}
    process.kill()
    process.wait(10)
    stranger = subprocess.Popen(command, env=environ, start_new_session=True)
    try:
        wait_until_blocking(partial(listens, address), within=20)
        yield
        assert stranger.poll() is None, "it was there all the time"
    finally:
        stranger.kill()
        stranger.wait()


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
        return True
    return False


def assert_only_its_own_process_is_routed_to(pair: Site, address: str, side: str) -> None:
    def not_routed(frontend: Frontend) -> bool:
        return any("replaced#0" in event["replicas"] for event in frontend.events("replicas_unconfirmed"))

    with another_process_at(pair.workers[side], address):
        for frontend in pair.frontends:
            wait_until_blocking(partial(not_routed, frontend), within=30, what="the worker's word over HTTP")
            assert chat(frontend, "replaced").status_code == 503


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
    (replaced,) = wait_for_replicas(pair.a, "replaced", 1)
    pair.bus.kill()
    pair.postgres.kill()
    assert_serving(pair)
    assert_refusing(pair)
    assert_only_its_own_process_is_routed_to(pair, replaced["address"], replaced["node"])
    assert_serving(pair)

    pair.postgres.start()
    pair.bus = pair.start_bus()
    for frontend in pair.frontends:
        wait_until_blocking(partial(answers, frontend, "unloaded"), within=60, what="the cold path again")
    assert_serving(pair)
    wait_until_blocking(lambda: set(pair.a.statuses().values()) == {"healthy"}, within=60)
