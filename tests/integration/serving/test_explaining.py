"""What is planned and what is explained, with real processes: two frontends and two workers."""

from tests.integration.serving.asking import add_echo, chat
from tests.integration.serving.site import Site, of_model
from tests.support.processes import Frontend, Json


def explanation(frontend: Frontend, request_id: str) -> Json:
    answer = frontend.ask("GET", f"/api/requests/{request_id}/explanation")
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def test_a_load_goes_where_it_was_planned_and_either_frontend_explains_the_wait(pair: Site) -> None:
    # Which of two equal machines has more memory left changes with each heartbeat.
    add_echo(pair.a, "planned", selector={"node.name": "left"})
    plan = pair.b.ask("GET", "/api/models/planned/plan").json()
    assert plan["node"] == "left"
    assert plan["steps"][-1]["action"] == "load"
    assert [(one["nodes"], one["why"]) for one in plan["not_chosen"]] == [
        (["right"], "no label node.name=left, which the model asks for")
    ]

    cold = chat(pair.a, "planned")
    assert cold.status_code == 200, cold.text
    assert {one["node"] for one in of_model(pair.a, "planned")} == {plan["node"]}
    own, told = (explanation(one, cold.headers["x-request-id"]) for one in (pair.a, pair.b))
    assert own == told
    assert (told["model"], told["node"], told["status"]) == ("planned", plan["node"], 200)
    assert sum(wait["seconds"] for wait in told["waits"]) <= told["waited_seconds"] + 0.01
    assert any("planned" in wait["cause"] for wait in told["waits"]), told

    chat(pair.b, "planned").raise_for_status()  # Which may have to wait until it hears of the load.
    warm = chat(pair.b, "planned")
    found = explanation(pair.a, warm.headers["x-request-id"])
    assert (found.get("waits", []), found["why"]) == ([], "it was the only replica that could be chosen")
    pair.a.ask("DELETE", "/api/models/planned").raise_for_status()
