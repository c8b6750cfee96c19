"""Logs of backends through the frontend: from a real worker HTTP server, over real sockets."""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskStatus
from anyio.streams.text import TextReceiveStream
from click.testing import CliRunner, Result
from pydantic import SecretStr
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from remuda.cli.exits import Exit
from remuda.cli.verbs import root
from remuda.core.clock import SystemClock
from remuda.core.sse import SseParser
from remuda.host.ports import listen
from remuda.wire.process_keys import ProcessKey
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.http.app import TokenGuard, application
from remuda.worker.http.backend_proxy import open_door
from remuda.worker.http.server import serve
from remuda.worker.processes.logs import LogSink, ProcessLogs
from tests.support.frontends import LiveFrontend
from tests.support.worker_http import nothing_runs

pytestmark = pytest.mark.anyio

MODEL = "org/tiny"


@dataclass(frozen=True, slots=True)
class Logged:
    node_id: str
    sink: LogSink
    stop: anyio.Event  # Ends its worker's HTTP server.


async def background_until(
    stop: anyio.Event, run: Callable[..., Coroutine[None, None, None]], *, task_status: TaskStatus[None]
) -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(run)
        task_status.started()
        await stop.wait()
        tasks.cancel_scope.cancel()


@pytest.fixture
async def logged(frontend: LiveFrontend, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Logged]:
    async with logging_worker(frontend, tmp_path_factory.mktemp("logs")) as made:
        yield made


@asynccontextmanager
async def logging_worker(frontend: LiveFrontend, folder: Path) -> AsyncIterator[Logged]:
    """A node whose worker has three lines of one model."""
    logs = ProcessLogs(folder, SystemClock())
    sink = logs.open(ProcessKey(MODEL, 0), "instance-1")
    sink.stdout(b"one\n")
    sink.stderr(b"two\n")
    sink.stdout(b"three\n")
    with listen("127.0.0.1", 0) as socket:
        address = f"127.0.0.1:{socket.getsockname()[1]}"
        async with open_door(lambda _key: None) as door, anyio.create_task_group() as tasks:
            guard = TokenGuard(OpeningTokens(SecretStr(frontend.token)))
            stop = anyio.Event()
            app = application(lambda: "", guard, logs, door, nothing_runs)
            await tasks.start(partial(background_until, stop, partial(serve, app, socket)))
            node = await frontend.register(http_address=address)
            yield Logged(node["id"], sink, stop)
            stop.set()


async def test_the_models_with_logs_and_their_lines(frontend: LiveFrontend, logged: Logged) -> None:
    root = f"/api/nodes/{logged.node_id}/backend-logs"
    assert (await frontend.admin.get(root)).json() == [MODEL]
    lines = (await frontend.admin.get(f"{root}/{MODEL}")).json()
    assert [(line["stream"], line["text"]) for line in lines] == [
        ("stdout", "one"),
        ("stderr", "two"),
        ("stdout", "three"),
    ]
    last = (await frontend.admin.get(f"{root}/{MODEL}%230", params={"tail": 1, "stream": "stdout"})).json()
    assert [line["text"] for line in last] == ["three"]
    assert (await frontend.admin.get(f"{root}/never-loaded")).json() == []


async def test_lines_are_followed_as_events(frontend: LiveFrontend, logged: Logged) -> None:
    url = f"/api/nodes/{logged.node_id}/backend-logs/{MODEL}"
    texts: list[str] = []
    with anyio.fail_after(30):
        async with frontend.admin.stream("GET", url, params={"follow": "true", "tail": 1}) as reply:
            assert reply.headers["content-type"] == "text/event-stream"
            parser = SseParser()
            async for chunk in reply.aiter_raw():
                for event in parser.feed(chunk):
                    if event.name == "end":
                        assert json.loads(event.data)["code"] == "node_unreachable"
                        continue
                    texts.append(json.loads(event.data)["text"])
                    if texts[-1] == "three":
                        logged.sink.stdout(b"four\n")
                    if texts[-1] == "four":
                        logged.stop.set()  # Its worker stops, and the stream says so.
    assert texts == ["three", "four"]


async def test_lines_are_followed_on_a_websocket(frontend: LiveFrontend, logged: Logged) -> None:
    url = f"ws://127.0.0.1:{frontend.port}/ws/nodes/{logged.node_id}/backend-logs/{MODEL}"
    with anyio.fail_after(30):
        async with connect(url, proxy=None) as socket:
            known = json.loads(await socket.recv())
            logged.sink.stderr(b"live\n")
            new = json.loads(await socket.recv())
    assert (known["type"], [line["text"] for line in known["lines"]]) == ("initial", ["one", "two", "three"])
    assert (new["type"], new["line"]["stream"], new["line"]["text"]) == ("line", "stderr", "live")


async def test_a_websocket_is_refused_to_pages_of_other_origins(
    frontend: LiveFrontend, logged: Logged, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"ws://127.0.0.1:{frontend.port}/ws/nodes/{logged.node_id}/backend-logs/{MODEL}"
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, proxy=None, origin="http://evil.example").__aenter__()  # type: ignore[arg-type]
    assert refused.value.response.status_code == 403
    assert (await frontend.admin.get("/healthz")).status_code == 200
    assert [line.message for line in caplog.records if line.levelname == "ERROR"] == []


async def test_where_keys_are_needed_a_websocket_needs_one(open_frontend: LiveFrontend) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(
            f"ws://127.0.0.1:{open_frontend.port}/ws/nodes/any/backend-logs/m", proxy=None
        ).__aenter__()
    assert refused.value.response.status_code == 401


async def test_a_worker_that_is_away_is_named_with_its_address(frontend: LiveFrontend) -> None:
    node = await frontend.register("away", http_address="127.0.0.1:1")
    for follow in ("false", "true"):
        reply = await frontend.admin.get(f"/api/nodes/{node['id']}/backend-logs/m", params={"follow": follow})
        assert reply.status_code == 502
        assert "away at 127.0.0.1:1 cannot be reached" in reply.json()["error"]["message"]
    assert (await frontend.admin.get("/api/nodes/unknown/backend-logs")).status_code == 404


async def test_a_node_that_waits_for_approval_is_not_called(strict_frontend: LiveFrontend) -> None:
    node = await strict_frontend.register("newcomer", http_address="127.0.0.1:1")
    reply = await strict_frontend.admin.get(f"/api/nodes/{node['id']}/backend-logs")
    assert reply.status_code == 409
    assert "remuda nodes approve newcomer" in reply.json()["error"]["message"]


# As the command shows them.


async def remuda_logs(frontend: LiveFrontend, *arguments: str) -> Result:
    command = ["logs", *arguments, "--url", frontend.url]
    return await anyio.to_thread.run_sync(lambda: CliRunner().invoke(root, command))


async def test_logs_are_found_by_node_and_by_model(frontend: LiveFrontend, logged: Logged) -> None:
    for what in (logged.node_id, MODEL):
        done = await remuda_logs(frontend, what, "--tail", "2")
        assert done.exit_code == 0
        assert done.stdout.splitlines()[-2:] == ["two", "three"]  # Before them: the frontend's own log.
    shown = (await remuda_logs(frontend, MODEL, "--json")).stdout
    lines = json.loads(shown.splitlines()[-1])["lines"]
    assert (lines[0]["name"], lines[0]["stream"], lines[0]["text"]) == (MODEL, "stdout", "one")


async def test_logs_of_nothing_name_what_there_is(frontend: LiveFrontend, logged: Logged) -> None:
    done = await remuda_logs(frontend, "nobody")
    assert done.exit_code == Exit.NOT_FOUND
    assert MODEL in done.stderr


async def test_logs_are_followed_and_a_lost_connection_is_told(
    frontend: LiveFrontend, logged: Logged
) -> None:
    words = ["-m", "remuda", "logs", MODEL, "--follow", "--tail", "1", "--url", frontend.url]
    with anyio.fail_after(60):
        async with await anyio.open_process([sys.executable, *words]) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            shown = TextReceiveStream(process.stdout)
            assert await shown.receive() == "three\n"
            logged.sink.stdout(b"four\n")
            assert await shown.receive() == "four\n"
            logged.stop.set()
            said = ""
            while "connecting again" not in said:
                said += (await process.stderr.receive()).decode()
            process.terminate()


async def test_a_followed_log_ends_with_the_program_that_reads_it(
    frontend: LiveFrontend, logged: Logged
) -> None:
    words = ["-m", "remuda", "logs", MODEL, "--follow", "--tail", "1", "--url", frontend.url]
    read_end, write_end = os.pipe()
    with anyio.fail_after(60):
        async with await anyio.open_process([sys.executable, *words], stdout=write_end) as process:
            os.close(write_end)
            assert await anyio.to_thread.run_sync(os.read, read_end, 100) == b"three\n"
            os.close(read_end)  # As `head -1` does. No further line is written.
            await process.wait()
            assert process.stderr is not None
            said = b"".join([text async for text in process.stderr])
    assert b"Traceback" not in said
    assert b"pipe" not in said.lower()


async def test_a_websocket_below_v1_is_refused_in_openais_shape(frontend: LiveFrontend) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"ws://127.0.0.1:{frontend.port}/v1/realtime", proxy=None):
            pass
    assert caught.value.response.status_code == 404
    error = json.loads(caught.value.response.body or b"")["error"]
    assert error["code"] == "no_such_endpoint"
    assert "OpenAI's realtime API is not offered here" in error["message"]
