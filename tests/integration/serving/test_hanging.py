"""What clients are told when a backend says nothing: in the middle of an answer, instead of one, and while it
is to become ready."""

from collections.abc import Iterator

import pytest

from tests.integration.serving.asking import add_echo, chat, replicas, said, stream
from tests.support.processes import Frontend, ranch
from tests.support.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    with ranch(tmp_path_factory.mktemp("hanging")) as place:
        frontend = place.up("up", "--answer-silence", "3s", "--answer-limit", "4s")
        add_echo(frontend)
        assert said(chat(frontend, "echo")) == "one two three"
        yield frontend


def test_stream_that_stops_ends_with_an_error_event(up: Frontend) -> None:
    hung = stream(up, "echo", "a b c", metadata={"echo_hang_at_token": "2", "echo_hang": "true"})

    assert (hung.status, hung.text, hung.done) == (200, "a b", True)
    assert hung.error is not None
    assert hung.error["code"] == "backend_failed"
    assert hung.error["message"] == "the backend of echo said nothing for 3 s"


def test_answer_that_never_begins_is_given_up(up: Frontend) -> None:
    answer = chat(up, "echo", metadata={"echo_hang": "true"})

    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "backend_failed"
    assert answer.json()["error"]["message"] == "the backend of echo said nothing for 4 s"
    assert said(chat(up, "echo")) == "one two three", "the others are not held up"


@pytest.fixture(scope="module")
def never_ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    with ranch(tmp_path_factory.mktemp("never-ready")) as place:
        options = ("--model-load-wait", "2s", "--backend-env", "ECHO_NEVER_READY")
        up = place.up("up", *options, ECHO_NEVER_READY="true")
        add_echo(up)
        yield up


def test_who_waited_for_a_backend_that_is_not_ready_yet_is_asked_to_come_again(never_ready: Frontend) -> None:
    waiting = chat(never_ready, "echo")
    assert waiting.status_code == 503
    assert waiting.json()["error"]["code"] == "model_loading"
    assert int(waiting.headers["Retry-After"]) >= 5
    assert waiting.json()["loading"]["model"] == "echo"


@pytest.mark.long
def test_backend_that_never_becomes_ready_is_given_up_with_the_reason(never_ready: Frontend) -> None:
    def refusal() -> str | None:
        error = chat(never_ready, "echo").json()["error"]
        return error["message"] if error["code"] == "model_load_failed" else None

    told = wait_until_blocking(refusal, within=60)
    assert "it did not become ready on port" in told
    assert "within 30 s: its health call answers 'NOT READY'" in told
    wait_until_blocking(lambda: not replicas(never_ready), what="no row left")
