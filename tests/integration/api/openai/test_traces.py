"""What remains of a request: headers, one log line, and figures."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import structlog

from remuda.accounts.keys import KeyScope
from remuda.accounts.terms import KeyTerms
from remuda.core import log
from remuda.inference.answers import ByteSink
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall
from remuda.models.config import ModelConfig
from remuda.router.affinity import PREFIX, SESSION
from remuda.router.hints import PREFERRED
from remuda.router.table import RoutedModel
from tests.integration.api.openai.asking import ASK, ASK_STREAM, CHAT, STREAM
from tests.support.plain_http import PLAIN
from tests.support.raw_http import raw_client
from tests.support.scripted_upstreams import Endless, Gateway, gateway, route_to, serving, table
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield io.StringIO()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()


def lines(output: io.StringIO) -> list[dict[str, Any]]:
    said = (json.loads(line) for line in output.getvalue().splitlines())
    return [line for line in said if line["event"] == "inference_answered"]


async def post(served: Gateway, body: dict[str, Any], **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, verify=PLAIN) as client:
        return await client.post(CHAT, json=body, headers=headers)


@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_the_node_is_named_in_headers_where_that_is_switched_on(body: dict[str, Any]) -> None:
    async with serving(gateway(expose_node=True)) as served:
        reply = await post(served, body)
    assert (reply.headers["x-remuda-node"], reply.headers["x-localai-node"]) == ("gpu-1", "id-of-gpu-1")


async def test_the_node_is_not_named_otherwise(served: Gateway) -> None:
    assert "x-remuda-node" not in (await post(served, ASK)).headers


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", CHAT, ASK, 200),
        ("POST", CHAT, STREAM, 200),
        ("POST", CHAT, {}, 400),
        ("POST", CHAT, ASK | {"model": "none"}, 404),
        ("GET", CHAT, None, 405),
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/models/none", None, 404),
        ("GET", "/v1/nonsense", None, 404),
    ],
)
async def test_every_answer_has_the_requests_id(
    client: httpx.AsyncClient, method: str, path: str, body: object, status: int
) -> None:
    reply = await client.request(method, path, json=body, headers={"x-request-id": "mine-1"})
    assert (reply.status_code, reply.headers["x-request-id"]) == (status, "mine-1")


@pytest.mark.parametrize("given", ["", "two words", "x" * 200, "é", "rmd_0123456789abcdef0123", 'a"b'])
async def test_an_id_that_fits_nowhere_or_looks_like_a_secret_is_replaced(
    served: Gateway, given: str
) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, verify=PLAIN) as client:
        headers = [(b"x-request-id", given.encode("latin-1"))]
        replies = [await client.post(CHAT, json=ASK, headers=headers) for _ in range(2)]
    minted = [reply.headers["x-request-id"] for reply in replies]
    assert all(one.startswith("req-") for one in minted)
    assert minted[0] != minted[1]


async def test_a_request_leaves_one_line_of_json(output: io.StringIO) -> None:
    log.configure("info", "json", output)
    async with serving(gateway()) as served:
        await post(served, STREAM, **{"x-request-id": "mine-1"})
    (line,) = lines(output)
    numbers = {name: line.pop(name) for name in ("ttft_ms", "total_ms", "timestamp")}
    assert line == {
        "request_id": "mine-1",
        "caller": "",
        "kind": "chat",
        "model": "m",
        "node": "gpu-1",
        "status": 200,
        "stream": True,
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "waited_ms": 0.0,
        "error": "",
        "event": "inference_answered",
        "level": "info",
    }
    assert 0 < numbers["ttft_ms"] <= numbers["total_ms"] < 10_000


async def test_for_people_the_line_is_as_readable_as_others(output: io.StringIO) -> None:
    log.configure("info", "console", output)
    async with serving(gateway()) as served:
        await post(served, ASK, **{"x-request-id": "mine-1"})
    (line,) = [line for line in output.getvalue().splitlines() if "Inference answered" in line]
    assert "request id mine-1" in line
    assert "status 200" in line


async def test_a_frontend_that_logs_less_leaves_no_line(output: io.StringIO) -> None:
    log.configure("warning", "json", output)
    async with serving(gateway()) as served:
        await post(served, ASK)
    assert output.getvalue() == ""


async def test_what_fails_in_a_stream_is_logged_and_counted_as_failed(output: io.StringIO) -> None:
    log.configure("info", "json", output)

    async def breaks(call: InferenceCall, sink: ByteSink) -> None:
        await sink.begin(200, b"text/event-stream")
        await sink.write(b"data: {}\n\n")
        raise UpstreamFailed(Fault.BROKE, "crashed")

    async with serving(gateway()) as served:
        served.upstreams.script = breaks
        await post(served, STREAM)
        (line,) = lines(output)
        assert (line["status"], line["error"]) == (502, "backend_failed")
        assert figure(served, "requests_total", kind="chat", model="m", node="gpu-1", status="502") == 1


async def test_a_client_that_left_is_counted_as_one(served: Gateway) -> None:
    served.upstreams.script = endless = Endless()
    async with raw_client(served.port) as raw:
        await raw.send(ASK_STREAM)
        await wait_until(lambda: endless.began)
        assert figure(served, "in_flight", model="m", node="gpu-1") == 1
    await wait_until(
        lambda: figure(served, "requests_total", kind="chat", model="m", node="gpu-1", status="499")
    )
    assert figure(served, "in_flight", model="m", node="gpu-1") is None


async def test_tokens_and_times_are_counted_by_model_and_node(served: Gateway) -> None:
    await post(served, STREAM)
    assert figure(served, "tokens_total", model="m", node="gpu-1", type="prompt") == 3
    assert figure(served, "tokens_total", model="m", node="gpu-1", type="completion") == 2
    assert figure(served, "time_to_first_token_seconds_count", model="m", node="gpu-1") == 1
    assert figure(served, "time_per_token_seconds_count", model="m", node="gpu-1") == 1


async def test_what_strangers_ask_for_never_becomes_a_label(served: Gateway) -> None:
    for name in ("stranger-1", "stranger-2"):
        await post(served, ASK | {"model": name})
    assert b"stranger" not in served.metrics.rendered()
    assert figure(served, "requests_total", kind="chat", model="", node="", status="404") == 2


def figure(served: Gateway, name: str, **labels: str) -> float | None:
    return served.metrics.registry.get_sample_value(f"remuda_inference_{name}", labels)


async def test_a_request_that_is_over_can_be_explained() -> None:
    made = gateway()
    async with serving(made) as served:
        await post(served, STREAM, **{"x-request-id": "mine-1"})
        await wait_until(lambda: made.decisions.find("mine-1") is not None)
    found = made.decisions.find("mine-1")
    assert found is not None
    assert found.route == route_to("m")
    assert (found.model, found.status) == ("m", 200)
    assert found.why == "it was the only replica that could be chosen"
    assert (found.waits, found.tried) == ((), ())
    assert found.first_token_s is not None
    assert found.began_s < found.first_token_s <= found.ended_s


@pytest.mark.parametrize("policy", ["prefix_cache", "session"])
async def test_requests_that_belong_together_go_to_one_replica(policy: str) -> None:
    made = gateway()
    config = ModelConfig.model_validate({"name": "m", "backend": "echo", "route_policy": policy})
    routes = tuple(route_to("m", index, f"gpu-{index}") for index in range(4))
    made.tables.replace(table(RoutedModel(config, routes, listed=True)))
    async with serving(made) as served:
        for number in range(4):
            await post(served, ASK, **{"x-request-id": f"r-{number}", "x-remuda-session": "ada"})
        await wait_until(lambda: made.decisions.find("r-3") is not None)
    found = [made.decisions.find(f"r-{number}") for number in range(4)]
    assert len({one.route for one in found if one is not None}) == 1
    assert found[3] is not None
    assert found[3].why in (PREFIX, SESSION)


@pytest.mark.parametrize("keys_required", [True, False])
async def test_hints_choose_among_replicas_and_take_a_key_that_may(keys_required: bool) -> None:
    """Also where no key is needed: one that is sent counts for what it may."""
    made = gateway(keys_required=keys_required)
    routes = tuple(route_to("m", index, f"gpu-{index}") for index in range(3))
    made.tables.replace(table(RoutedModel(ModelConfig(name="m", backend="echo"), routes, listed=True)))
    plain, _ = await made.keyring.create("plain", KeyScope.INFERENCE)
    may, _ = await made.keyring.create("may", KeyScope.INFERENCE, terms=KeyTerms(may_route=True))
    hint = {"x-remuda-prefer": "gpu-2"}
    async with serving(made) as served:
        refused = await post(served, ASK, **hint, authorization=f"Bearer {plain}")
        taken = await post(served, ASK, **hint, **{"x-request-id": "hinted"}, authorization=f"Bearer {may}")
        await wait_until(lambda: made.decisions.find("hinted") is not None)
    assert (refused.status_code, taken.status_code) == (403, 200)
    found = made.decisions.find("hinted")
    assert found is not None
    assert (found.route, found.why) == (routes[2], PREFERRED)
