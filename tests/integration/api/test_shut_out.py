"""What goes on for as long as someone listens ends with the session that it was opened by."""

import json
from pathlib import Path

import anyio
import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from remuda.gateway.sessions import COOKIE
from tests.integration.api.test_backend_logs import MODEL, logging_worker
from tests.integration.api.test_sessions import CONSOLE, browser, new_key, signed_in
from tests.support.frontends import LiveFrontend

pytestmark = pytest.mark.anyio
WITHIN_S = 60.0


async def all_of(client: httpx.AsyncClient, path: str, begun: anyio.Event) -> str:
    """What a stream sends until it ends by itself, which it has to do properly."""
    text = ""
    async with client.stream("GET", path) as reply:
        assert reply.status_code == 200
        async for part in reply.aiter_text():
            text += part
            begun.set()
    return text


async def test_streams_and_followed_logs_end_when_their_session_is_signed_out_of(
    open_frontend: LiveFrontend, tmp_path: Path
) -> None:
    made = await new_key(open_frontend, "watches")
    told: dict[str, str] = {}
    async with logging_worker(open_frontend, tmp_path) as logged, browser(open_frontend) as client:
        await signed_in(client, made["key"])
        log = f"/api/nodes/{logged.node_id}/backend-logs/{MODEL}"
        streams = {path: anyio.Event() for path in ("/api/events", "/api/ops/events", f"{log}?follow=true")}

        async def follow(path: str) -> None:
            told[path] = await all_of(client, path, streams[path])

        headers = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}", **CONSOLE}
        address = f"ws://127.0.0.1:{open_frontend.port}/ws{log.removeprefix('/api')}"
        with anyio.fail_after(WITHIN_S):
            async with (
                connect(address, proxy=None, additional_headers=headers) as socket,
                anyio.create_task_group() as tasks,
            ):
                for path in streams:
                    tasks.start_soon(follow, path)
                assert json.loads(await socket.recv())["type"] == "initial"
                for begun in streams.values():
                    await begun.wait()
                reply = await open_frontend.anyone.delete("/api/session", headers=headers)
                assert reply.status_code == 200
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, "session is over" in closed.value.rcvd.reason) == (1008, True)
    assert told.keys() == streams.keys()
    assert "session is over" in told[f"{log}?follow=true"].rpartition("event: end")[2]


async def test_a_key_that_is_revoked_ends_what_it_follows(
    open_frontend: LiveFrontend, tmp_path: Path
) -> None:
    made = await new_key(open_frontend, "revoked")
    async with logging_worker(open_frontend, tmp_path) as logged, browser(open_frontend) as client:
        client.headers["Authorization"] = f"Bearer {made['key']}"
        begun = anyio.Event()
        path = f"/api/nodes/{logged.node_id}/backend-logs/{MODEL}?follow=true"
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(all_of, client, path, begun)
                await begun.wait()
                reply = await open_frontend.admin.delete(f"/api/keys/{made['id']}")
                assert reply.status_code == 200
