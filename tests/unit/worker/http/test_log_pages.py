"""Logs of backends over HTTP and WebSocket."""

import json
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import anyio
import pytest
from yarl import URL

from remuda.core import limits
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.logs import ProcessLogs
from tests.support.clocks import HandClock
from tests.support.waiting import wait_until
from tests.support.worker_http import worker

pytestmark = pytest.mark.anyio

MODEL = "org/model:q4"


@pytest.fixture
def logs(tmp_path: Path) -> ProcessLogs:
    logs = ProcessLogs(tmp_path, HandClock(datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)))
    first, second = (logs.open(ProcessKey(MODEL, index), "i") for index in range(2))
    first.stdout(b"out 0\nwhat \xe2\x82\xac\n")
    first.stderr(b"err 0\n")
    second.stdout(b"out 1\n")
    return logs


def line(stream: str, text: str) -> dict[str, str]:
    return {"timestamp": "2026-01-31T12:00:00.25Z", "stream": stream, "text": text}


ALL = [line("stdout", "out 0"), line("stdout", "what €"), line("stderr", "err 0"), line("stdout", "out 1")]


async def test_models_with_logs_are_listed(tmp_path: Path, logs: ProcessLogs) -> None:
    logs.open(ProcessKey("another", 0), "i")
    async with worker(tmp_path, logs=logs) as caller, caller.get("/v1/backend-logs") as answer:
        assert answer.headers["content-type"] == "application/json"
        assert await answer.json() == ["another", MODEL]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (MODEL, ALL),
        ("org%2Fmodel%3Aq4", ALL),
        (f"{MODEL}%230", ALL[:3]),
        ("org%2Fmodel%3Aq4%231", ALL[3:]),
        ("unknown", []),
        ("model:q4", []),
        (f"{MODEL}?stream=stderr", [ALL[2]]),
        (f"{MODEL}?tail=2", ALL[2:]),
        (f"{MODEL}?tail=0", []),
        (f"{MODEL}?tail=99&stream=stdout", [ALL[0], ALL[1], ALL[3]]),
        (f"{MODEL}?other=1", ALL),
    ],
)
async def test_lines_of_a_model_or_of_one_process(
    tmp_path: Path, logs: ProcessLogs, name: str, expected: list[dict[str, str]]
) -> None:
    url = URL(f"/v1/backend-logs/{name}", encoded=True)
    async with worker(tmp_path, logs=logs) as caller, caller.get(url) as answer:
        assert (answer.status, await answer.json()) == (200, expected)


async def test_lines_of_an_earlier_worker_say_that_their_time_is_approximate(
    tmp_path: Path, logs: ProcessLogs
) -> None:
    restarted = ProcessLogs(tmp_path, HandClock())
    async with (
        worker(tmp_path, logs=restarted) as caller,
        caller.get(URL(f"/v1/backend-logs/{MODEL}%231", encoded=True)) as answer,
    ):
        [found] = await answer.json()
    assert (found["text"], found["approximate"]) == ("out 1", True)
    assert found["timestamp"]


@pytest.mark.parametrize("query", ["tail=-1", "tail=x", "tail=", "stream=stdin", "tail=" + "9" * 20])
async def test_a_query_that_means_nothing_is_refused(tmp_path: Path, query: str) -> None:
    async with worker(tmp_path) as caller, caller.get(f"/v1/backend-logs/x?{query}") as answer:
        assert answer.status == 400
        assert query.partition("=")[0] in await answer.text()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD"])
@pytest.mark.parametrize("path", ["/v1/backend-logs", "/v1/backend-logs/x"])
async def test_logs_are_only_read(tmp_path: Path, method: str, path: str) -> None:
    async with worker(tmp_path) as caller, caller.request(method, path) as answer:
        assert (answer.status, answer.headers["allow"]) == (405, "GET")


async def test_the_live_path_is_for_websockets(tmp_path: Path) -> None:
    async with worker(tmp_path) as caller, caller.get("/v1/backend-logs/x/ws") as answer:
        assert answer.status == 400


# Live


@pytest.mark.parametrize("name", [MODEL, "org%2Fmodel%3Aq4"])
async def test_a_socket_tells_what_there_is_and_then_what_comes(
    tmp_path: Path, logs: ProcessLogs, name: str
) -> None:
    url = URL(f"/v1/backend-logs/{name}/ws", encoded=True)
    with anyio.fail_after(20):
        async with worker(tmp_path, logs=logs) as caller, caller.ws_connect(url) as live:
            assert await live.receive_json() == {"type": "initial", "lines": ALL}
            sink = logs.open(ProcessKey(MODEL, 2), "i")
            sink.stderr(b"new\nhalf")
            assert await live.receive_json() == {"type": "line", "line": line("stderr", "new")}
            sink.close()
            assert await live.receive_json() == {"type": "line", "line": line("stderr", "half")}


async def test_one_process_can_be_followed(tmp_path: Path, logs: ProcessLogs) -> None:
    url = URL(f"/v1/backend-logs/{MODEL}%231/ws", encoded=True)
    with anyio.fail_after(20):
        async with worker(tmp_path, logs=logs) as caller, caller.ws_connect(url) as live:
            assert (await live.receive_json())["lines"] == ALL[3:]
            logs.open(ProcessKey(MODEL, 0), "i").stdout(b"not asked for\n")
            logs.open(ProcessKey(MODEL, 1), "i").stdout(b"asked for\n")
            assert (await live.receive_json())["line"]["text"] == "asked for"


async def test_a_flood_reaches_a_socket_shortened(tmp_path: Path, logs: ProcessLogs) -> None:
    with anyio.fail_after(20):
        async with (
            worker(tmp_path, logs=logs) as caller,
            caller.ws_connect("/v1/backend-logs/flood/ws") as live,
        ):
            await live.receive_json()
            sink = logs.open(ProcessKey("flood", 0), "i")
            for _ in range(100):
                sink.stdout(b"x\n" * 1000)
            sink.stdout(b"end\n")
            frames = [await live.receive_json()]
            while frames[-1]["line"]["text"] != "end":
                frames.append(await live.receive_json())
    assert "lines are omitted here" in frames[0]["line"]["text"]
    assert len(frames) <= limits.LOG_FOLLOW_LINES_MAX + 2


async def test_a_reader_that_leaves_is_forgotten(tmp_path: Path, logs: ProcessLogs) -> None:
    with anyio.fail_after(20):
        async with worker(tmp_path, logs=logs) as caller:
            async with caller.ws_connect("/v1/backend-logs/x/ws") as live:
                await live.receive_json()
                assert len(logs._followers) == 1
            await wait_until(lambda: not logs._followers)


async def test_open_sockets_do_not_hold_up_the_end(tmp_path: Path, logs: ProcessLogs) -> None:
    with anyio.fail_after(limits.PROBE_SHUTDOWN_S):
        async with worker(tmp_path, logs=logs) as caller:
            live = await caller.ws_connect("/v1/backend-logs/x/ws")
            await live.receive_json()
    assert not logs._followers


@pytest.mark.parametrize(
    ("origin", "status"), [("http://evil.example", 403), ("null", 403), ("http://[", 403)]
)
async def test_pages_of_other_origins_cannot_follow(tmp_path: Path, origin: str, status: int) -> None:
    async with worker(tmp_path) as caller:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await caller.ws_connect("/v1/backend-logs/x/ws", origin=origin)
    assert refused.value.status == status


async def test_a_page_of_the_same_origin_can_follow(tmp_path: Path) -> None:
    async with worker(tmp_path) as caller:
        origin = str(caller._base_url).rstrip("/")
        async with caller.ws_connect("/v1/backend-logs/x/ws", origin=origin) as live:
            assert json.loads(await live.receive_str()) == {"type": "initial", "lines": []}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
async def test_a_socket_needs_the_token(tmp_path: Path, headers: dict[str, str]) -> None:
    async with worker(tmp_path, headers=headers) as caller:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await caller.ws_connect("/v1/backend-logs/x/ws")
    assert refused.value.status == 401


@pytest.mark.parametrize(
    "path", ["/v1/backend-logs", "/v1/backend-logs/ws", "/v1/processes/x%230/ws", "/healthz"]
)
async def test_there_are_no_other_sockets(tmp_path: Path, path: str) -> None:
    async with worker(tmp_path) as caller:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await caller.ws_connect(path)
    assert refused.value.status == 404
