"""Servers that run without Remuda: adopted, asked, watched, and never paid more than their budget."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path

import anyio
import httpx
import pytest
import trustme

from remuda.host.ports import free_port
from tests.integration.backends.programs import running
from tests.integration.running import llama_server
from tests.support.connect_proxy import ConnectProxy, connect_proxy
from tests.support.frontends import Json, LiveFrontend, live_frontend
from tests.support.model_servers import KEPT_TOKENS, PROMPT_TOKENS, ModelServer, model_server
from tests.support.models import tiny_model
from tests.support.nats_servers import plain_server
from tests.support.postgres import postgres_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
async def frontend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    async with live_frontend(tmp_path_factory.mktemp("servers"), model_load_wait="1s") as live:
        yield live


@pytest.fixture
async def nas() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


async def adopt(frontend: LiveFrontend, server: ModelServer, name: str, **terms: object) -> Json:
    reply = await frontend.admin.post("/api/servers", json={"url": server.url, "name": name, **terms})
    assert reply.status_code == 201, reply.text
    made: Json = reply.json()
    return made


async def ask(frontend: LiveFrontend, model: str, **members: object) -> httpx.Response:
    body = {"model": model, "messages": HELLO, **members}
    return await frontend.anyone.post("/v1/chat/completions", json=body)


async def shown(frontend: LiveFrontend, name: str) -> Json:
    reply = await frontend.admin.get(f"/api/servers/{name}")
    assert reply.status_code == 200, reply.text
    found: Json = reply.json()
    return found


def refusal(reply: httpx.Response) -> Json:
    error: Json = reply.json()["error"]
    return error


async def test_its_models_answer_under_its_name(frontend: LiveFrontend, nas: ModelServer) -> None:
    made = await adopt(frontend, nas, "nas")
    assert (made["kind"], made["up"]) == ("openai", True)
    assert [one["name"] for one in made["models"]] == ["nas/large", "nas/small"]
    listed = (await frontend.anyone.get("/v1/models")).json()["data"]
    assert {"nas/large", "nas/small"} <= {one["id"] for one in listed}
    reply = await ask(frontend, "nas/small")
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == "nas/small"
    assert reply.json()["choices"][0]["message"]["content"] == "w0 w1 w2 w3 w4 "
    assert nas.asked[-1]["model"] == "small"


async def test_a_stream_is_relayed_with_our_name_of_the_model(
    frontend: LiveFrontend, nas: ModelServer
) -> None:
    await adopt(frontend, nas, "streamer")
    reply = await ask(frontend, "streamer/small", stream=True)
    assert reply.text.count('"model":"streamer/small"') + reply.text.count('"model": "streamer/small"') == 6
    assert reply.text.endswith("data: [DONE]\n\n")


async def test_a_path_that_names_the_version_of_its_api_is_whole(
    frontend: LiveFrontend, nas: ModelServer
) -> None:
    body = {"url": f"{nas.url}/v1beta/openai", "name": "versioned"}
    made = await frontend.admin.post("/api/servers", json=body)
    assert (made.status_code, made.json()["url"]) == (201, body["url"]), made.text
    assert (await ask(frontend, "versioned/small")).status_code == 200
    stream = await ask(frontend, "versioned/small", stream=True)
    assert "w0" in stream.text


async def test_clients_of_other_apis_are_answered_too(frontend: LiveFrontend, nas: ModelServer) -> None:
    await adopt(frontend, nas, "many")
    body = {"model": "many/small", "messages": HELLO, "max_tokens": 3}
    reply = await frontend.anyone.post("/v1/messages", json=body)
    assert reply.json()["content"] == [{"type": "text", "text": "w0 w1 w2 "}]
    assert reply.json()["usage"]["input_tokens"] == PROMPT_TOKENS
    reply = await frontend.anyone.post("/api/chat", json={"model": "many/small", "messages": HELLO})
    assert reply.status_code == 200, reply.text
    assert "many/small" in (await frontend.anyone.get("/api/tags")).text


async def test_an_ollama_is_known_for_one(frontend: LiveFrontend) -> None:
    async with model_server(ModelServer(names=("llama3:latest",), ollama=True)) as server:
        made = await adopt(frontend, server, "ollama")
        assert made["kind"] == "ollama"
        assert (await ask(frontend, "ollama/llama3:latest")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_speaks_anthropics_api_answers_clients_of_openais(
    frontend: LiveFrontend, nas: ModelServer, stream: bool
) -> None:
    name = f"claude-{stream}".lower()
    await adopt(frontend, nas, name, kind="anthropic")
    system = {"role": "system", "content": "Be brief."}
    body = {"model": f"{name}/large", "messages": [system, *HELLO], "max_tokens": 3, "stream": stream}
    reply = await frontend.anyone.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert nas.asked[-1]["system"] == "Be brief."
    assert nas.asked[-1]["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    if stream:
        assert reply.text.count('"content":"w') == 3
        assert reply.text.endswith("data: [DONE]\n\n")
    else:
        assert reply.json()["choices"][0]["message"]["content"] == "w0 w1 w2 "
        assert reply.json()["usage"]["prompt_tokens"] == PROMPT_TOKENS


async def test_a_prompt_that_its_server_is_to_keep_costs_twice(
    frontend: LiveFrontend, nas: ModelServer
) -> None:
    await adopt(frontend, nas, "keeper", kind="anthropic", prices={"*": "1000/0"}, budget="100")
    marked = {
        "role": "user",
        "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
    }
    body = {"model": "keeper/small", "max_tokens": 5, "messages": [marked]}
    reply = await frontend.anyone.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    assert nas.asked[-1]["messages"] == [marked]
    thousandths = PROMPT_TOKENS + 2 * KEPT_TOKENS
    assert Decimal((await shown(frontend, "keeper"))["spent"]) == Decimal(thousandths).scaleb(-3).quantize(
        Decimal("0.01")
    )


async def test_two_fleets_that_adopt_each_other_list_their_own_models_and_do_not_send_requests_in_circles(
    frontend: LiveFrontend, tmp_path: Path
) -> None:
    async with live_frontend(tmp_path, model_load_wait="1s") as other:
        for here, there in ((frontend, other), (other, frontend)):
            config = "name: shared\nbackend: missing\nupstreams: [peer]\n"
            assert (await here.admin.post("/api/models", json={"config": config})).status_code == 201
            body = {"url": there.url, "name": "peer"}
            made = await here.admin.post("/api/servers", json=body)
            assert (made.status_code, made.json()["kind"]) == (201, "openai"), made.text
        await wait_until(partial(_knows_peer, frontend))
        names = [one["name"] for one in (await shown(frontend, "peer"))["models"]]
        assert not [name for name in names if name.startswith("peer/peer/")]
        reply = await ask(frontend, "shared")
        assert (reply.status_code, refusal(reply)["code"]) == (503, "no_capacity"), reply.text
    await frontend.admin.delete("/api/servers/peer")


async def _knows_peer(frontend: LiveFrontend) -> bool:
    return bool((await shown(frontend, "peer"))["up"])


async def test_llama_cpps_own_server_is_adopted_leaves_and_is_back(
    frontend: LiveFrontend, tmp_path: Path
) -> None:
    words = ("--port", str(free_port("127.0.0.1")), "--model", str(tiny_model()), "--context", "1024")
    with running(tmp_path, *words, module=llama_server.__name__) as server:
        await wait_until(lambda: "listening on" in server.log, within=60)
        body = {"url": f"http://127.0.0.1:{words[1]}", "name": "llama"}
        made = await frontend.admin.post("/api/servers", json=body)
        assert made.status_code == 201, made.text
        (model,) = [one["name"] for one in made.json()["models"]]
        reply = await ask(frontend, model, max_tokens=4)
        assert reply.json()["usage"]["completion_tokens"] == 4, reply.text
    await wait_until(partial(_refused, frontend, model))
    with running(tmp_path, *words, module=llama_server.__name__):
        await wait_until(partial(_answers, frontend, model), within=60)


async def _refused(frontend: LiveFrontend, model: str) -> bool:
    reply = await ask(frontend, model, max_tokens=1)
    return reply.status_code == 503 and refusal(reply)["code"] == "server_absent"


async def test_what_is_no_server_is_refused_with_the_reason(frontend: LiveFrontend, nas: ModelServer) -> None:
    reply = await frontend.admin.post("/api/servers", json={"url": "http://127.0.0.1:1"})
    assert (reply.status_code, refusal(reply)) == (502, refusal(reply))
    assert refusal(reply)["message"].startswith("127.0.0.1:1 cannot be reached: Connection refused")
    await adopt(frontend, nas, "twice")
    reply = await frontend.admin.post("/api/servers", json={"url": nas.url, "name": "twice"})
    assert reply.status_code == 409


@pytest.mark.parametrize(
    "body",
    [
        {"url": ""},
        {"url": "ftp://nas"},
        {"url": "http://user:pass@nas"},
        {"url": "http://nas", "name": "Not/A name"},
        {"url": "http://nas", "kind": "smtp"},
        {"url": "http://nas", "prices": {"*": "cheap"}},
        {"url": "http://nas", "budget": "-1"},
        {"url": "http://nas", "unheard": 1},
        {"url": "http://127.0.0.1:1", "unseen": True},
        {"url": "http://127.0.0.1:1", "kind": "openai", "prices": {"*": "1/1"}, "unseen": True},
        {"url": "http://127.0.0.1:1", "kind": "openai", "budget": "5", "unseen": True},
    ],
)
async def test_nonsense_is_refused(frontend: LiveFrontend, body: Json) -> None:
    assert (await frontend.admin.post("/api/servers", json=body)).status_code == 400


async def test_one_that_leaves_is_absent_with_a_reason_and_is_found_again(frontend: LiveFrontend) -> None:
    async with model_server() as server:
        await adopt(frontend, server, "leaver")
        port = int(server.url.rpartition(":")[2])
    reply = await ask(frontend, "leaver/small")
    assert (reply.status_code, refusal(reply)["code"]) == (503, "server_absent"), reply.text
    assert "the server leaver cannot be used: its address cannot be reached" in refusal(reply)["message"]
    assert str(port) not in reply.text, "where it is, is an admin's to know"
    assert not (await shown(frontend, "leaver"))["up"]
    async with model_server(port=port):
        await wait_until(lambda: _answers(frontend, "leaver/small"))


async def test_after_a_stream_broke_off_the_next_request_waits_until_it_is_known_how_the_server_is(
    frontend: LiveFrontend,
) -> None:
    async with model_server() as server:
        await adopt(frontend, server, "breaker")
        server.breaks = True
        assert "backend_failed" in (await ask(frontend, "breaker/small", stream=True)).text
        assert (await ask(frontend, "breaker/small")).status_code == 200  # It was only the stream.
        server.broken_status = 500
        assert "backend_failed" in (await ask(frontend, "breaker/small", stream=True)).text
        reply = await ask(frontend, "breaker/small")
        assert (reply.status_code, refusal(reply)["code"]) == (503, "server_absent")
        assert "the server breaker cannot be used: /v1/models was answered with" in refusal(reply)["message"]


async def _answers(frontend: LiveFrontend, model: str) -> bool:
    return (await ask(frontend, model, max_tokens=4)).status_code == 200


async def test_its_key_is_sent_there_and_shown_nowhere(frontend: LiveFrontend) -> None:
    async with model_server(ModelServer(key="sk-very-secret")) as server:
        reply = await frontend.admin.post("/api/servers", json={"url": server.url, "name": "closed"})
        assert "it requires a key" in refusal(reply)["message"]
        made = await adopt(frontend, server, "closed", key="sk-very-secret")
        assert made["has_key"]
        assert "sk-very-secret" not in str(made) + str(await shown(frontend, "closed"))
        assert (await ask(frontend, "closed/small")).status_code == 200
        moved = await frontend.admin.patch("/api/servers/closed", json={"url": "http://127.0.0.1:1"})
        assert "not sent to another address" in refusal(moved)["message"]


async def test_a_redirect_takes_the_key_nowhere(frontend: LiveFrontend) -> None:
    async with model_server() as thief, model_server(ModelServer(key="sk-held")) as server:
        await adopt(frontend, server, "mover", key="sk-held")
        server.status, server.headers = 307, {"Location": f"{thief.url}/v1/chat/completions"}
        reply = await ask(frontend, "mover/small")
        assert reply.status_code in (502, 503), reply.text
        assert thief.keys == []


async def test_over_https_it_is_asked_only_if_its_certificate_is_good(
    frontend: LiveFrontend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    async with model_server(ModelServer(key="sk-tls"), tls=context) as server:
        wish = {"url": server.url, "name": "tls", "key": "sk-tls"}
        reply = await frontend.admin.post("/api/servers", json=wish)
        assert (reply.status_code, server.keys) == (502, [])
        assert "certificate verify failed" in refusal(reply)["message"]
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        async with live_frontend(tmp_path / "trusting") as trusting:
            await adopt(trusting, server, "tls", key="sk-tls")
            assert (await ask(trusting, "tls/small")).status_code == 200


async def test_a_proxy_leads_to_servers_over_https_and_cannot_read_what_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("cloud.test").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    for name in ("no_proxy", "NO_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with (
        model_server(ModelServer(key="sk-held"), tls=context) as cloud,
        connect_proxy(ConnectProxy(user="we:secret")) as proxy,
    ):
        proxy.leads_to["cloud.test:443"] = int(cloud.url.rpartition(":")[2])
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        async with live_frontend(tmp_path / "behind") as behind:
            wish = {"url": "https://cloud.test", "name": "cloud", "key": "sk-held", "free": True}
            reply = await behind.admin.post("/api/servers", json=wish)
            assert reply.status_code == 201, reply.text
            assert (await ask(behind, "cloud/small")).status_code == 200
            assert "w0" in (await ask(behind, "cloud/small", stream=True)).text
            assert "cloud.test:443" in proxy.asked
            assert b"sk-held" not in proxy.passed
            proxy.refuses = "403 Forbidden"
            edited = await behind.admin.patch("/api/servers/cloud", json={"key": "sk-held", "kind": "ollama"})
            assert edited.status_code == 502
            assert f"the proxy 127.0.0.1:{proxy.port} answers 403" in refusal(edited)["message"]


async def test_an_admin_can_let_it_go(frontend: LiveFrontend, nas: ModelServer) -> None:
    await adopt(frontend, nas, "gone")
    assert (await frontend.admin.delete("/api/servers/gone")).status_code == 200
    reply = await ask(frontend, "gone/small")
    assert (reply.status_code, refusal(reply)["code"]) == (404, "model_not_found")
    assert (await frontend.admin.delete("/api/servers/gone")).status_code == 404


async def test_requests_leave_only_for_servers_that_their_model_lists_in_that_order(
    frontend: LiveFrontend,
) -> None:
    async with model_server() as first, model_server() as second:
        await adopt(frontend, first, "first", parallel=1)
        await adopt(frontend, second, "second")
        config = "name: wide\nbackend: missing\nupstreams: [first/small, second/large]\n"
        assert (await frontend.admin.post("/api/models", json={"config": config})).status_code == 201
        private = "name: private\nbackend: missing\n"
        assert (await frontend.admin.post("/api/models", json={"config": private})).status_code == 201
        first.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, frontend, "wide")
            await wait_until(lambda: first.answering == 1)
            reply = await ask(frontend, "wide")  # The first is full.
            assert reply.status_code == 200, reply.text
            assert reply.json()["model"] == "wide"
            assert [one["model"] for one in second.asked] == ["large"]
            first.gate.set()
        assert [one["model"] for one in first.asked] == ["small"]
        assert (await ask(frontend, "private")).status_code == 503
        assert (len(first.asked), len(second.asked)) == (1, 1)


async def test_a_model_that_only_servers_have_waits_for_room_there(
    frontend: LiveFrontend, nas: ModelServer
) -> None:
    await adopt(frontend, nas, "narrow", parallel=1)
    config = "name: elsewhere\nupstreams: [narrow/small]\n"
    assert (await frontend.admin.post("/api/models", json={"config": config})).status_code == 201
    nas.gate, answered = anyio.Event(), list[httpx.Response]()

    async def one() -> None:
        answered.append(await ask(frontend, "elsewhere"))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(one)
        await wait_until(partial(_wait, frontend, "elsewhere", 2))
        assert nas.answering == 1
        nas.gate.set()
    assert [one.status_code for one in answered] == [200] * 3
    told = [await _explained(frontend, one) for one in answered]
    assert sum("the server narrow has as many requests as it may be sent" in one for one in told) == 2


async def _wait(frontend: LiveFrontend, model: str, count: int) -> bool:
    return (
        f'remuda_inference_waiting{{model="{model}"}} {count}.0'
        in (await frontend.admin.get("/metrics")).text
    )


async def _explained(frontend: LiveFrontend, reply: httpx.Response) -> str:
    return (await frontend.admin.get(f"/api/requests/{reply.headers['x-request-id']}/explanation")).text


async def test_one_that_is_asked_too_often_is_left_alone_for_a_while(frontend: LiveFrontend) -> None:
    async with model_server() as busy, model_server() as other:
        await adopt(frontend, busy, "busy")
        await adopt(frontend, other, "other")
        config = "name: either\nupstreams: [busy/small, other/small]\n"
        assert (await frontend.admin.post("/api/models", json={"config": config})).status_code == 201
        busy.status, busy.headers = 429, {"Retry-After": "60"}
        for _ in range(3):
            assert (await ask(frontend, "either")).status_code == 200
        assert (len(busy.asked), len(other.asked)) == (1, 3)
        reply = await ask(frontend, "either")
        paused = await ask(frontend, "busy/small")
        assert (paused.status_code, refusal(paused)["code"]) == (429, "rate_limit_exceeded")
        assert "the server busy is asked too often" in refusal(paused)["message"]
        assert 1 <= int(paused.headers["retry-after"]) <= 60
        told = await frontend.admin.get(f"/api/requests/{reply.headers['x-request-id']}/explanation")
        assert "in the order of the model's `upstreams`" in told.text


async def test_a_paid_request_needs_a_price_and_a_limit(frontend: LiveFrontend, nas: ModelServer) -> None:
    await adopt(frontend, nas, "paid", prices={"small": "1/2"}, budget="1")
    reply = await ask(frontend, "paid/small")
    assert (reply.status_code, refusal(reply)["code"]) == (400, "invalid")
    assert (refusal(reply)["type"], refusal(reply)["param"]) == ("invalid_request_error", "max_tokens")
    assert "--max-tokens" in refusal(reply)["message"]
    speech = {"model": "paid/small", "input": "hello", "voice": "amy"}
    reply = await frontend.anyone.post("/v1/audio/speech", json=speech)
    assert (reply.status_code, refusal(reply)["code"]) == (400, "unsupported_request")
    assert "max_tokens" not in reply.text, "there is no such field"
    assert "ask a model on one of your own nodes" in refusal(reply)["message"]
    reply = await ask(frontend, "paid/large", max_tokens=5)
    assert (reply.status_code, refusal(reply)["code"]) == (403, "forbidden")
    assert "large has no price on the server paid" in refusal(reply)["message"]
    config = "name: unpriced\nupstreams: [paid/large]\n"
    assert (await frontend.admin.post("/api/models", json={"config": config})).status_code == 201
    assert (await ask(frontend, "unpriced", max_tokens=5)).status_code == 403
    assert nas.asked == []
    assert (await ask(frontend, "paid/small", max_tokens=5)).status_code == 200
    patched = await frontend.admin.patch("/api/servers/paid", json={"max_tokens": 3})
    assert patched.status_code == 200, patched.text
    assert (await ask(frontend, "paid/small")).json()["usage"]["completion_tokens"] == 3
    stream = await ask(frontend, "paid/small", stream=True, max_tokens=2)
    assert '"usage":{' not in stream.text  # It was asked for to count, not by the client.
    assert nas.asked[-1]["stream_options"] == {"include_usage": True}
    assert (await ask(frontend, "paid/small", max_completion_tokens=4, max_tokens=1)).status_code == 200
    assert {name: nas.asked[-1][name] for name in nas.asked[-1] if "max" in name} == {"max_tokens": 4}
    reply = await ask(frontend, "paid/small", max_tokens=2, models=["large"])
    assert (reply.status_code, refusal(reply)["param"]) == (400, "models")
    millionths = nas.prompt_tokens + 2 * nas.completion_tokens
    state = await shown(frontend, "paid")
    assert Decimal(state["spent"]) == Decimal(millionths).scaleb(-6)


async def test_a_request_that_breaks_off_costs_the_same_in_the_budget_and_in_usage(
    frontend: LiveFrontend, nas: ModelServer
) -> None:
    await adopt(frontend, nas, "aborted", prices={"*": "1/1000"}, budget="1")
    nas.gate = anyio.Event()  # Nothing is answered.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(ask, frontend, "aborted/small", max_tokens=100))
        await wait_until(lambda: nas.answering)
        tasks.cancel_scope.cancel()

    async def spent() -> Decimal:
        return Decimal((await shown(frontend, "aborted"))["spent"])

    async def used() -> Decimal:
        asked = {"model": "aborted/small", "by": "node"}
        rows = (await frontend.admin.get("/api/usage", params=asked)).json()["usage"]
        return sum((Decimal(row.get("cost") or 0) for row in rows), Decimal(0))

    await wait_until(spent)
    cost = await wait_until(used)
    assert cost > Decimal("0.1"), "what its 100 tokens may cost at most, and its prompt"
    assert cost.quantize(Decimal("0.01")) == await spent()  # Which is rounded, for people.


async def test_a_server_that_takes_more_than_it_was_asked_for_is_asked_no_more(tmp_path: Path) -> None:
    """Also after what was taken of the budget was given back: here, by a frontend that stops."""
    script = ModelServer(prompt_tokens_told=1_000_000)
    async with model_server(script) as greedy:
        for turn in range(2):
            async with live_frontend(tmp_path) as frontend:
                if not turn:
                    await adopt(frontend, greedy, "greedy", prices={"*": "1/1"}, budget="0.5")
                await wait_until(partial(_knows, frontend, "greedy/small"))
                reply = await ask(frontend, "greedy/small", max_tokens=5)
                assert reply.status_code == (429 if turn else 200), reply.text
                if turn:
                    assert reply.headers["x-should-retry"] == "false"
                    assert "retry-after" not in reply.headers
        assert len(greedy.asked) == 1


async def test_a_server_that_fails_or_is_asked_too_often_leaves_the_request_to_the_next(
    frontend: LiveFrontend,
) -> None:
    async with model_server() as failing, model_server() as well:
        await adopt(frontend, failing, "failing")
        await adopt(frontend, well, "well")
        config = "name: chain\nupstreams: [failing/small, well/small]\n"
        added = await frontend.admin.post("/api/models", json={"config": config})
        assert added.status_code == 201
        assert "no node can take" not in added.text
        failing.status = 500
        assert (await ask(frontend, "chain")).status_code == 200
        await wait_until(partial(_listed, frontend, "failing/small"))
        failing.status, failing.headers = 429, {"Retry-After": "7.5"}
        reply = await ask(frontend, "failing/small")
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "8")
        assert len(failing.asked) == 2, "it is not asked again for the same request"


async def test_how_long_a_server_wants_to_be_left_alone_is_passed_on_and_shown(
    frontend: LiveFrontend,
) -> None:
    async with model_server() as often:
        await adopt(frontend, often, "often", prices={"small": "1/2", "large": "1/2"}, budget="1")
        often.status, often.headers = 429, {"Retry-After": "3000"}
        reply = await ask(frontend, "often/small", max_tokens=5)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "3000")
        reply = await ask(frontend, "often/small", max_tokens=5)
        assert (reply.status_code, len(often.asked)) == (429, 1)
        assert 2900 <= int(reply.headers["retry-after"]) <= 3000, "the seconds that are left"
        found = await shown(frontend, "often")
        models = {one["name"]: one for one in found["models"]}
        assert {one["price"] for one in models.values()} == {"1/2"}
        assert "reason" not in models["often/large"]
        assert models["often/small"]["reason"].startswith("left alone until ")
        assert "the server often is asked too often" in models["often/small"]["reason"]
        often.status, often.headers = 429, {"Retry-After": "1"}
        reply = await ask(frontend, "often/large", max_tokens=5)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1"), "no longer than it says"


async def _listed(frontend: LiveFrontend, model: str) -> bool:
    found = await shown(frontend, model.partition("/")[0])
    return bool(found["up"])


async def test_a_pictures_bytes_are_no_words(frontend: LiveFrontend, nas: ModelServer) -> None:
    await adopt(frontend, nas, "seer", prices={"*": "10/10"}, budget="1")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 600_000}}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}]
    body = {"model": "seer/small", "messages": messages, "max_tokens": 5}
    assert (await frontend.anyone.post("/v1/chat/completions", json=body)).status_code == 200


async def test_an_adopted_fleet_counts_tokens_and_tells_of_too_long_a_prompt(
    frontend: LiveFrontend, nas: ModelServer
) -> None:
    await adopt(frontend, nas, "counter")
    await frontend.anyone.post("/v1/tokenize", json={"model": "counter/small", "prompt": "a b"})
    assert nas.tokenized == [{"model": "small", "content": "a b", "prompt": "a b"}]
    await adopt(frontend, nas, "claude", kind="anthropic")
    nas.too_long = True
    reply = await ask(frontend, "claude/small")
    assert (reply.status_code, refusal(reply)["code"]) == (400, "context_length_exceeded")
    assert "it is the server claude that bounds them" in refusal(reply)["message"]
    assert "remuda models" not in refusal(reply)["message"]


@asynccontextmanager
async def two_frontends(folder: Path) -> AsyncIterator[tuple[LiveFrontend, LiveFrontend]]:
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        bus = await stack.enter_async_context(plain_server(folder))
        url = postgres.new_database()
        live = []
        for name in ("here", "there"):
            (folder / name).mkdir()
            frontend = live_frontend(
                folder / name, database_url=url, nats_url=bus.url, insecure_no_token=True
            )
            live.append(await stack.enter_async_context(frontend))
        yield live[0], live[1]


async def test_a_storm_on_two_frontends_never_costs_more_than_the_budget(tmp_path: Path) -> None:
    async with two_frontends(tmp_path) as live, model_server(ModelServer(words=40)) as server:
        await adopt(live[0], server, "cloud", prices={"*": "10/100"}, budget="0.5")
        for one in live:
            await wait_until(partial(_knows, one, "cloud/small"))
        replies: list[httpx.Response] = []

        async def many(frontend: LiveFrontend) -> None:
            for _ in range(25):
                replies.append(await ask(frontend, "cloud/small", max_tokens=40))

        async with anyio.create_task_group() as tasks:
            for one in live * 4:
                tasks.start_soon(many, one)
        bill = (10 * server.prompt_tokens + 100 * server.completion_tokens) / 1_000_000
        refused = [reply for reply in replies if reply.status_code != 200]
        assert {(one.status_code, refusal(one)["code"]) for one in refused} == {(429, "insufficient_quota")}
        assert 0.35 < bill <= 0.5
        assert float((await shown(live[0], "cloud"))["committed"]) <= 0.5


async def _knows(frontend: LiveFrontend, model: str) -> bool:
    listed = (await frontend.anyone.get("/v1/models")).json()["data"]
    return model in {one["id"] for one in listed}
