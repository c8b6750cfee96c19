"""A replica that stops producing, though its process is there, is found without a request, and replaced."""

from collections.abc import Iterator

import pytest

from tests.integration.serving.asking import add_echo, chat, open_stream, process_at, replicas, said
from tests.support.processes import Frontend, Json, ranch
from tests.support.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    with ranch(tmp_path_factory.mktemp("checks")) as place:
        yield place.up("up", "--no-starter", "--work-check", "2s")


def only(up: Frontend, model: str) -> Json | None:
    found = [one for one in replicas(up) if one["model"] == model and one["state"] == "loaded"]
    return found[0] if len(found) == 1 else None


def test_one_that_produces_nothing_is_replaced_and_one_that_is_slow_is_not(up: Frontend) -> None:
    add_echo(up, "slow")
    add_echo(up, "wedged")
    assert said(chat(up, "slow")) == said(chat(up, "wedged")) == "one two three"
    slow, wedged = only(up, "slow"), only(up, "wedged")
    assert slow is not None
    assert wedged is not None
    frozen = process_at(up, wedged["address"])
    with open_stream(up, "slow", "word " * 300, metadata={"echo_token_rate": "1"}):
        frozen.suspend()  # Its port still takes connections.

        def replaced() -> bool:
            now = only(up, "wedged")
            return now is not None and now["op_id"] != wedged["op_id"]

        wait_until_blocking(replaced, within=60, what="another process of the model")
    assert not frozen.is_running()

    def noted() -> bool:
        history = up.get("/api/history")
        lost = [entry["detail"] for entry in history if entry["event"] == "replica_lost"]
        why = "wedged#0: taken out of service: it produced nothing when it was asked 2 times"
        return any(detail.startswith(why) for detail in lost)

    wait_until_blocking(noted, within=30, what="its loss in the history, with the reason")
    assert said(chat(up, "wedged")) == "one two three"
    still = only(up, "slow")
    assert still is not None
    assert (still["op_id"], still["address"]) == (slow["op_id"], slow["address"])


def test_a_check_is_no_use(up: Frontend) -> None:
    add_echo(up, "brief", keep_alive="5s")
    assert said(chat(up, "brief")) == "one two three"
    wait_until_blocking(
        lambda: not [one for one in replicas(up) if one["model"] == "brief"], within=30, what="its unload"
    )
