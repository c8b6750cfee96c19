"""A real OpenAI-compatible server as a backend: one YAML file, and reached through the worker alone."""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from remuda.worker.depot.depot import Depot
from tests.integration.running import llama_server
from tests.integration.running.rig import CLOCK, TOKEN, Rig
from tests.support.models import tiny_model
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}
CHAT = "/v1/chat/completions"
QUESTION: dict[str, Any] = {"messages": [{"role": "user", "content": "the house"}], "max_tokens": 4}


@pytest.fixture(autouse=True)
async def registered(rig: Rig) -> None:
    """The command a person would have written down, and no image."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", llama_server.__name__, "--port", "{port}", "--model", "{model_path}"]
    manifest = {
        "protocol": "http",
        "command": [*command, ["--context", "{context_size}"]],
        "env": {"PYTHONPATH": str(root)},
        "start_limit": "60s",
    }
    await Depot(rig.yard.places, CLOCK).register("llama-server", json.dumps(manifest))


async def served(rig: Rig, **more: object) -> Any:
    path = str(tiny_model())
    return await rig.installed("llama-server", model_id="tiny", protocol="http", model_path=path, **more)


async def test_a_streaming_chat_passes_through_the_workers_door(rig: Rig) -> None:
    reply = await served(rig)
    assert (reply["protocol"], reply["address"]) == ("http", rig.http.base_url.netloc.decode())

    async with rig.http.stream(
        "POST", reply["path"] + CHAT, json={**QUESTION, "stream": True}, headers=WITH_TOKEN
    ) as answer:
        assert answer.status_code == 200
        events = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]

    assert events[-1] == "[DONE]"
    assert [json.loads(event)["object"] for event in events[:-1]] == (
        ["chat.completion.chunk"] * (len(events) - 1)
    )
    assert len(events) > 2


async def test_nobody_passes_without_the_token(rig: Rig) -> None:
    reply = await served(rig)
    for wrong in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN}):
        answer = await rig.http.post(reply["path"] + CHAT, json=QUESTION, headers=wrong)
        assert answer.status_code == 401
    assert (await rig.http.get(reply["path"] + "/health", headers=WITH_TOKEN)).status_code == 200


async def test_the_server_listens_on_loopback_alone(rig: Rig) -> None:
    await served(rig)
    held = rig.process("tiny").net_connections("tcp")
    assert {one.laddr.ip for one in held if one.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


async def test_what_runs_is_told_with_its_protocol(rig: Rig) -> None:
    reply = await served(rig)
    row = await rig.until_ready("tiny")
    assert (row["protocol"], row["address"], row["instance"]) == (
        "http",
        reply["address"],
        reply["instance"],
    )
    assert [one["name"] for one in (await rig.ask("backend.list"))["backends"]] == ["llama-server"]


async def test_other_options_make_it_another_server(rig: Rig) -> None:
    first = await served(rig)
    assert await served(rig) == first
    second = await served(rig, options=["context_size:128"])
    assert second["instance"] != first["instance"]
    assert "--context" in rig.process("tiny").cmdline()
    assert len(rig.yard.alive()) == 1


async def test_a_stopped_server_is_no_longer_behind_the_door(rig: Rig) -> None:
    reply = await served(rig)
    await rig.tell("backend.stop", backend="tiny")
    await wait_until(lambda: not rig.yard.alive())
    answer = await rig.http.get(reply["path"] + "/health", headers=WITH_TOKEN)
    assert (answer.status_code, answer.headers["x-remuda-refusal"]) == (503, "not_ready")


async def test_a_server_that_is_stopped_in_good_order_reads_as_no_trouble(rig: Rig) -> None:
    reply = await served(rig)
    stopped = await rig.ask(
        "model.stop", model_name="tiny", process_key="tiny#0", expected_address=reply["address"]
    )
    assert stopped == {
        "matched": True,
        "freed": False,
        "terminated": True,
        "process_key": "tiny#0",
        "address": reply["address"],
    }


async def test_a_frontend_that_knows_grpc_alone_is_told_what_it_is(rig: Rig) -> None:
    reason = await rig.refused("llama-server", model_id="tiny")
    assert reason.startswith("llama-server speaks HTTP, and gRPC was asked for")
    reply = await rig.installed("llama-server")  # Files are all that an admin wants.
    assert "there is nothing to start it with" in reply.pop("unproven")
    assert reply == {"success": True}


async def test_a_model_that_cannot_be_loaded_is_told_with_the_servers_own_words(rig: Rig) -> None:
    reason = await rig.refused("llama-server", model_id="tiny", protocol="http", model_path="/nowhere.gguf")
    assert "llama-server could not be started for tiny: it ended with exit code 1" in reason
    assert "/nowhere.gguf" in reason


async def test_an_answer_whose_server_was_killed_is_cut_and_not_made_whole(rig: Rig) -> None:
    reply = await served(rig, options=["context_size:8192"])
    long = {**QUESTION, "max_tokens": 8000, "ignore_eos": True, "stream": True}

    async with rig.http.stream("POST", reply["path"] + CHAT, json=long, headers=WITH_TOKEN) as answer:
        chunks = answer.aiter_raw()
        await anext(chunks)
        rig.process("tiny").kill()
        with pytest.raises(httpx.RemoteProtocolError):
            _ = [chunk async for chunk in chunks]

    await rig.until_ready("tiny", restarts=1)
    assert (await rig.http.get(reply["path"] + "/health", headers=WITH_TOKEN)).status_code == 200
