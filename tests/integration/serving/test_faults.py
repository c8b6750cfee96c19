"""What clients are told when a backend misbehaves: exactly this."""

from collections.abc import Iterator

import pytest

from tests.integration.serving.asking import add_echo, chat, replicas, said, stream
from tests.support.processes import Frontend, ranch
from tests.support.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    with ranch(tmp_path_factory.mktemp("faults")) as place:
        frontend = place.up()
        add_echo(frontend)
        assert said(chat(frontend, "echo")) == "one two three"
        yield frontend


def test_crash_in_the_middle_of_a_stream_ends_it_with_an_error_event(up: Frontend) -> None:
    paced = {"echo_crash_at_token": "5", "echo_token_rate": "20"}
    broken = stream(up, "echo", "a b c d e f g", metadata=paced)

    assert broken.status == 200
    # What the process had not handed to the kernel when it died is lost with it.
    assert broken.text
    assert "a b c d e".startswith(broken.text)
    assert broken.error is not None
    assert broken.error["code"] == "backend_failed"
    assert said(chat(up, "echo")) == "one two three"


def test_crash_before_the_first_token_is_no_answer_and_the_next_request_is_served(up: Frontend) -> None:
    answer = chat(up, "echo", metadata={"echo_crash": "1"})

    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "backend_failed"
    assert said(chat(up, "echo")) == "one two three"


def test_backend_that_refuses_is_quoted(up: Frontend) -> None:
    answer = chat(up, "echo", metadata={"echo_fail": "INVALID_ARGUMENT"})

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_ten_megabytes_in_one_message_arrive(up: Frontend) -> None:
    word = "x" * (5 << 20)  # One word is one token and one message, which holds it twice.
    big = stream(up, "echo", word)

    assert big.done
    assert big.text == word


def test_bytes_that_are_no_text_are_replaced(up: Frontend) -> None:
    garbage = stream(up, "echo", "a b", metadata={"echo_garbage": "true"})

    assert garbage.done
    assert "\ufffd" in garbage.text


def test_model_that_cannot_be_loaded_answers_with_the_cause(up: Frontend) -> None:
    add_echo(up, "unloadable", "echo_load_fail:the weights are torn")
    answer = chat(up, "unloadable")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_load_failed"
    assert "the weights are torn" in answer.json()["error"]["message"]
    again = chat(up, "unloadable")
    assert "the weights are torn" in again.json()["error"]["message"], "the same cause, and no new load"


def test_crash_while_loading_is_told_and_leaves_nothing(up: Frontend) -> None:
    add_echo(up, "crashing", "echo_load_crash:7")
    answer = chat(up, "crashing")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_load_failed"
    wait_until_blocking(
        lambda: "crashing" not in {one["model"] for one in replicas(up)}, within=30, what="no row left"
    )


def test_backend_that_answers_as_another_model_is_not_believed(up: Frontend) -> None:
    """D1 rows 15 and 36: a process that says it has no such model is stopped, and another one is loaded. Here
    that says the same, and no third one is tried."""
    before = replicas(up)
    answer = chat(up, "echo", metadata={"echo_fail": "FAILED_PRECONDITION"})

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "backend_failed"
    assert said(chat(up, "echo")) == "one two three"
    after = [one["op_id"] for one in replicas(up) if one["model"] == "echo"]
    assert after != [one["op_id"] for one in before if one["model"] == "echo"]
