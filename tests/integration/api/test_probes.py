"""What watches a frontend sees: `/healthz`, `/readyz`, `/metrics`; and what a bare machine joins with."""

import hashlib
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from remuda import __version__
from remuda.host.ports import free_port
from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.nats_servers import HOST, plain_server
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def reason(frontend: LiveFrontend) -> str:
    """Why the frontend is not ready; empty when it is. It is alive all the time."""
    assert (await frontend.anyone.get("/healthz")).status_code == 200
    reply = await frontend.anyone.get("/readyz")
    if reply.status_code == 200:
        assert reply.content == b""
        return ""
    assert (reply.status_code, reply.json().keys()) == (503, {"status", "reason", "code", "parts"})
    return str(reply.json()["reason"])


async def ready(frontend: LiveFrontend) -> bool:
    return not await reason(frontend)


async def metrics(frontend: LiveFrontend) -> dict[str, Metric]:
    reply = await frontend.admin.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(reply.text)}


async def gauge(frontend: LiveFrontend, name: str) -> float:
    value: float = (await metrics(frontend))[name].samples[0].value
    return value


async def test_a_frontend_with_store_and_bus_is_ready(frontend: LiveFrontend) -> None:
    assert await reason(frontend) == ""


async def test_a_frontend_without_its_bus_says_so_until_it_is_back(tmp_path: Path) -> None:
    port = free_port(HOST)
    async with (
        plain_server(tmp_path, port=port) as bus,
        live_frontend(tmp_path, nats_url=bus.url) as frontend,
    ):
        assert (await reason(frontend), await gauge(frontend, "remuda_bus_up")) == ("", 1)
        bus.kill()
        assert "bus" in await wait_until(lambda: reason(frontend), within=30)
        assert (await gauge(frontend, "remuda_bus_up"), await gauge(frontend, "remuda_store_up")) == (0, 1)
        async with plain_server(tmp_path, port=port):
            await wait_until(lambda: ready(frontend), within=30)
            assert await gauge(frontend, "remuda_bus_up") == 1


async def test_a_frontend_without_its_database_says_so_until_it_is_back(tmp_path: Path) -> None:
    with postgres_server() as postgres:
        async with live_frontend(tmp_path, database_url=postgres.new_database()) as frontend:
            node = await frontend.register()
            assert await reason(frontend) == ""
            postgres.kill()
            why = await wait_until(lambda: reason(frontend), within=30)
            assert why.startswith("the database cannot be used")
            assert not internal(why, postgres)
            assert await gauge(frontend, "remuda_store_up") == 0
            reply = await frontend.admin.get("/api/nodes")
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, 503)
            assert int(reply.headers["retry-after"]) > 0
            assert reply.json()["error"]["reason"] == "store_unusable"
            assert not internal(reply.text, postgres)
            postgres.start()
            await wait_until(lambda: ready(frontend), within=30)
            assert await frontend.status(node["id"]) == "healthy"


def internal(text: str, postgres: PostgresServer) -> bool:
    """Whether a client learns where the database is, or as whom the frontend logs in there."""
    return any(word in text for word in (postgres.password, "postgresql", "127.0.0.1", "port", "user"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=True, timeout=10)
    except subprocess.CalledProcessError:
        pytest.skip("this container may not mount")
    yield disk
    subprocess.run(["umount", disk], check=True, timeout=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
async def test_a_frontend_whose_database_cannot_be_written_says_so_until_it_can(small_disk: Path) -> None:
    async with live_frontend(small_disk / "data", node_unhealthy_after=timedelta(seconds=1)) as frontend:
        assert await reason(frontend) == ""
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert "its disk is full" in await wait_until(lambda: reason(frontend), within=30)
        assert await gauge(frontend, "remuda_store_up") == 0
        filler.unlink()
        await wait_until(lambda: ready(frontend), within=30)


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/api/nodes", "/join.py", "/openapi.json"]
)
async def test_head_is_answered_like_get_without_the_body(frontend: LiveFrontend, path: str) -> None:
    got = await frontend.anyone.get(path)
    head = await frontend.anyone.head(path)
    assert (got.status_code, head.status_code, head.content) == (200, 200, b"")
    assert head.headers["content-length"] == got.headers["content-length"] or path == "/metrics"


async def test_metrics_have_the_documented_names(frontend: LiveFrontend) -> None:
    found = await metrics(frontend)
    ours = {name for name in found if not name.endswith("_created")}  # Those are the library's own.
    assert ours == {
        "remuda_http_requests",
        "remuda_http_request_seconds",
        "remuda_nodes",
        "remuda_store_up",
        "remuda_bus_up",
        "remuda_build_info",
        "remuda_operations_submitted",
        "remuda_operations_live",
        "remuda_operation_attempts",
        "remuda_operation_steps_ended",
        "remuda_inference_requests",
        "remuda_inference_tokens",
        "remuda_inference_time_to_first_token_seconds",
        "remuda_inference_time_per_token_seconds",
        "remuda_inference_waiting",
        "remuda_inference_in_flight",
        "remuda_inference_prefix_windows",
        "remuda_inference_prefix_busy",
    }
    assert found["remuda_build_info"].samples[0].labels == {"version": __version__}
    statuses = {sample.labels["status"] for sample in found["remuda_nodes"].samples}
    assert statuses == {"pending", "healthy", "unhealthy", "offline", "draining"}


async def test_requests_are_counted_by_template_and_never_by_path(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await frontend.heartbeat(node["id"])
    await frontend.admin.delete(f"/api/nodes/{node['id']}/labels/secret-label")
    await frontend.anyone.get("/secret-path")
    await frontend.anyone.request("PROPFIND", "/healthz")
    samples = [sample.labels for sample in (await metrics(frontend))["remuda_http_requests"].samples]
    counted = {(labels["method"], labels["route"], labels["status"]) for labels in samples}
    assert counted >= {
        ("POST", "/api/node/register", "201"),
        ("POST", "/api/node/{node_id}/heartbeat", "200"),
        ("DELETE", "/api/nodes/{node_id}/labels/{key}", "204"),
        ("ANY", "unknown", "404"),
        ("ANY", "/healthz", "405"),
    }
    assert not [labels for labels in samples if node["id"] in str(labels) or "secret" in str(labels)]


# Joining


async def test_the_join_script_names_a_wheel_and_its_digest(frontend: LiveFrontend) -> None:
    script = (await frontend.anyone.get("/join.py")).text
    compile(script, "join.py", "exec")
    address = re.search(rf"'({re.escape(frontend.url)}/join/[^']+\.whl)'", script)
    assert address is not None
    reply = await frontend.anyone.get(address[1])
    assert reply.status_code == 200
    assert f"'{hashlib.sha256(reply.content).hexdigest()}'" in script
    assert "remuda/__init__.py" in zipfile.ZipFile(BytesIO(reply.content)).namelist()


async def test_an_admin_can_have_the_join_line_once_more(
    frontend: LiveFrontend, open_frontend: LiveFrontend
) -> None:
    lines = (await open_frontend.admin.get("/api/join-line")).json()
    assert lines["line"].endswith(f"remuda join {lines['url']} --token {open_frontend.token}")
    assert lines["uvx_line"].startswith(f"REMUDA_REGISTRATION_TOKEN={open_frontend.token} uvx --from ")
    assert (await open_frontend.anyone.get("/api/join-line")).status_code == 401
    assert "this_machine_only" not in lines
    refused = await frontend.admin.get("/api/join-line")
    assert refused.status_code == 409
    assert "only this machine can reach this frontend" in refused.text
    alone = (await frontend.admin.get("/api/join-line", params={"this_machine": "true"})).json()
    assert alone["this_machine_only"]
    assert f"remuda join {alone['url']} --token " in alone["line"]


async def test_the_join_script_holds_no_secret(open_frontend: LiveFrontend) -> None:
    script = (await open_frontend.anyone.get("/join.py")).text
    assert open_frontend.token not in script
    assert open_frontend.running.first_admin_key not in script


@pytest.mark.parametrize("host", ["fleet.example:9000", "a'b\"c", 'x"@WHEEL_SHA256@"y', "a b"])
async def test_the_join_script_is_sound_whatever_the_host_header(
    open_frontend: LiveFrontend, host: str
) -> None:
    reply = await open_frontend.anyone.get("/join.py", headers={"Host": host})
    assert reply.status_code == 200
    compile(reply.text, "join.py", "exec")


async def test_those_who_are_no_browser_are_shown_where_to_go(
    frontend: LiveFrontend, open_frontend: LiveFrontend
) -> None:
    page = await frontend.anyone.get("/")  # Browsers get the console.
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert f"{frontend.url}/v1" in page.text
    assert "no key is needed" in page.text
    assert "Ollama is running" in page.text, "some programs look for these words"
    assert (await frontend.anyone.head("/")).status_code == 200, "others only for an answer"
    assert "remuda keys create" in (await open_frontend.anyone.get("/")).text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/threads", "OpenAI's Assistants API is not offered here: OpenAI's API is under /v1"),
        ("/v1/messages/batches", "Anthropic's batch API is not offered here: OpenAI's API is under /v1"),
        ("/nowhere", "no such endpoint: OpenAI's API is under /v1"),
        ("/v1/nowhere", "no such endpoint: OpenAI's API is under /v1"),
    ],
)
async def test_paths_of_other_apis_say_which_there_are(frontend: LiveFrontend, path: str, words: str) -> None:
    reply = await frontend.anyone.post(path)
    assert reply.status_code == 404
    assert words in reply.json()["error"]["message"]


async def test_a_filter_that_is_not_known_is_refused(frontend: LiveFrontend) -> None:
    reply = await frontend.admin.get("/api/ops", params={"nodes": "gpu-1"})
    assert reply.status_code == 400
    assert "unknown filter 'nodes'" in reply.json()["error"]["message"]
    assert (await frontend.admin.get("/api/history", params={"nod": "gpu-1"})).status_code == 400
