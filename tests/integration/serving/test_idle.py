"""Models that are kept for a short while only: for no longer, and by no frontend taken from another."""

from tests.integration.serving.asking import add_echo, chat, open_stream
from tests.integration.serving.site import Site, answered, of_model, wait_for_replicas, wait_until_unloaded

SECONDS = 6


def test_model_kept_for_its_requests_alone_stays_while_the_other_frontend_uses_it_and_goes_then(
    pair: Site,
) -> None:
    add_echo(pair.a, "once", keep_alive=0)
    assert answered(chat(pair.a, "once")) == "one two three"
    wait_until_unloaded(pair.a, "once")

    text = "word " * (10 * SECONDS)
    with open_stream(pair.b, "once", text, metadata={"echo_token_rate": "10"}) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
    wait_until_unloaded(pair.a, "once")
    assert len(pair.loads_of("once")) == 2, "it was not unloaded, and loaded again, in between"


def test_model_in_use_by_turns_is_kept_by_either_frontend(pair: Site) -> None:
    add_echo(pair.a, "brief", keep_alive="8s")
    assert answered(chat(pair.a, "brief")) == "one two three"
    (first,) = wait_for_replicas(pair.a, "brief", 1)
    for turn in range(2 * SECONDS):
        frontend = pair.frontends[turn % 2]
        slowly = {"echo_delay_ms": "900"}
        assert answered(chat(frontend, "brief", metadata=slowly)) == "one two three"

    (last,) = of_model(pair.a, "brief")
    assert last["op_id"] == first["op_id"]
    wait_until_unloaded(pair.a, "brief")
