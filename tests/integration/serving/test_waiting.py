"""What requests are told while their model is loaded, while its replicas are busy, and when it has gone."""

from collections.abc import Iterator

import pytest

from tests.integration.serving.asking import add_echo, chat, open_stream, stream
from tests.integration.serving.site import answered, at_once, of_model, wait_until_unloaded
from tests.support.processes import Frontend, ranch
from tests.support.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    with ranch(tmp_path_factory.mktemp("waiting") / "ranch") as place:
        impatient = ("--model-load-wait", "4s", "--requests-waiting-max", "2", "--request-wait", "4s")
        frontend = place.up("up", *impatient)
        add_echo(frontend, "first")  # Of all loads the first one takes longest: galleries are read.
        wait_until_blocking(lambda: chat(frontend, "first").status_code == 200, within=30)
        yield frontend


def test_wait_for_a_slow_load_ends_with_how_far_it_is(up: Frontend) -> None:
    add_echo(up, "slow", "echo_load_delay_ms:6000")
    with at_once(2) as callers:
        streaming = callers.submit(stream, up, "slow")
        whole = callers.submit(chat, up, "slow").result()
        streamed = streaming.result()

    assert whole.status_code == 503
    assert whole.json()["error"]["code"] == "model_loading"
    assert int(whole.headers["Retry-After"]) >= 1
    loading = whole.json()["loading"]
    assert (loading["model"], loading["state"], loading["node"]) == ("slow", "loading", "up")
    assert streamed.status == 200
    assert streamed.comments
    assert streamed.error is not None
    assert streamed.error["code"] == "model_loading"
    assert streamed.done


def test_load_goes_on_without_those_who_asked_and_serves_the_next(up: Frontend) -> None:
    wait_until_blocking(lambda: chat(up, "slow").status_code == 200, within=30, what="the load to end")

    def loads() -> list[str]:
        return [one["status"] for one in up.get("/api/ops")["operations"] if one.get("model") == "slow"]

    # The answer comes as soon as the model is loaded, the end of its operation a moment later.
    wait_until_blocking(lambda: loads() != ["running"], within=15, what="the operation to end")
    assert loads() == ["succeeded"]


def test_slow_load_of_one_model_delays_no_other(up: Frontend) -> None:
    add_echo(up, "slowest", "echo_load_delay_ms:60000")
    up.ask("POST", "/api/models/slowest/load").raise_for_status()
    wait_until_blocking(lambda: states(up, "slowest") == ["loading"], within=15)
    add_echo(up, "quick")

    assert answered(chat(up, "quick")) == "one two three"
    assert states(up, "slowest") == ["loading"]


def test_replica_for_one_at_a_time_lets_so_many_wait_and_refuses_the_rest(up: Frontend) -> None:
    add_echo(up, "single", parallel=1)
    answered(chat(up, "single"))
    with at_once(2) as callers:
        with open_stream(up, "single", "a b", metadata={"echo_hang_at_token": "1"}) as first:
            lines = first.iter_lines()
            next(lines)
            waits = [callers.submit(chat, up, "single") for _ in range(2)]
            wait_until_blocking(lambda: waiting(up, "single") == 2, within=3, what="two to wait")
            refused = chat(up, "single")
        assert [answered(one.result()) for one in waits] == ["one two three"] * 2

    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "overloaded"
    assert int(refused.headers["Retry-After"]) >= 1


def waiting(up: Frontend, model: str) -> float:
    metric = f'remuda_inference_waiting{{model="{model}"}} '
    shown = up.ask("GET", "/metrics").text.splitlines()
    return sum(float(line.removeprefix(metric)) for line in shown if line.startswith(metric))


def test_who_waited_too_long_for_a_busy_replica_is_told_so(up: Frontend) -> None:
    with open_stream(up, "single", "a b", metadata={"echo_hang_at_token": "1"}) as first:
        lines = first.iter_lines()
        next(lines)
        second = chat(up, "single")

    assert second.status_code == 429
    assert "busy for 4 s" in second.json()["error"]["message"]
    assert answered(chat(up, "single")) == "one two three", "who left has freed its place"
    assert waiting(up, "single") == 0


def test_idle_model_is_unloaded_but_neither_a_pinned_one_nor_one_in_use(up: Frontend) -> None:
    for name in ("brief", "used"):
        add_echo(up, name, keep_alive="1s")
    add_echo(up, "pinned", keep_alive="1s", pinned=True)
    answered(chat(up, "pinned"))
    answered(chat(up, "used"))
    with open_stream(up, "used", "word " * 500, metadata={"echo_token_rate": "10"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        answered(chat(up, "brief"))
        wait_until_unloaded(up, "brief")
        assert [states(up, name) for name in ("pinned", "used")] == [["loaded"], ["loaded"]]
    assert answered(chat(up, "brief")) == "one two three", "it is loaded again when it is asked for"


def states(up: Frontend, model: str) -> list[str]:
    return [one["state"] for one in of_model(up, model)]


def test_model_without_a_node_for_it_is_refused_with_the_reasons(up: Frontend) -> None:
    add_echo(up, "choosy", selector={"colour": "green"})
    answer = chat(up, "choosy")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_capacity"
    assert "up: no label colour=green" in answer.json()["error"]["message"]
