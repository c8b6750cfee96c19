"""A server that speaks HTTP, reached through its worker's door as a frontend reaches it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr

from remuda.core.clock import SystemClock
from remuda.core.errors import NodeUnreachable
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import ReplicaEndpoint
from remuda.upstreams.http.client import Pool
from remuda.upstreams.http.upstream import HttpUpstream
from remuda.upstreams.http.worker import HttpWorker
from remuda.wire.models import ModelsRunningReply, RunningModel
from remuda.wire.process_keys import ProcessKey, door_path
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.http.app import ListRunning, TokenGuard, application, probes
from remuda.worker.http.backend_proxy import open_door
from remuda.worker.processes.logs import ProcessLogs
from tests.integration.upstreams.scripted_http import (
    DONE,
    LAST_CHUNK,
    SSE,
    TOKEN,
    Notebook,
    ScriptedServer,
    chat,
    chunk,
    opened_pool,
    says,
    says_and_hangs,
    scripted,
)
from tests.support.waiting import wait_until
from tests.support.worker_http import listening, nothing_runs

pytestmark = pytest.mark.anyio

_KEY = ProcessKey("org/m", 0)


@asynccontextmanager
async def _worker(
    folder: Path, server: ScriptedServer | None, running: ListRunning = nothing_runs
) -> AsyncIterator[str]:
    """Its address. The server is ready if there is one."""
    port = None if server is None else int(server.address.partition(":")[2])
    async with open_door(lambda key: port if key == _KEY else None) as door:
        guard, logs = TokenGuard(OpeningTokens(SecretStr("right"))), ProcessLogs(folder, SystemClock())
        async with listening(application(lambda: "", guard, logs, door, running)) as url:
            yield url.removeprefix("http://")


def _upstream(address: str, pool: Pool, token: str = "right") -> HttpUpstream:
    return HttpUpstream(ReplicaEndpoint(address, "http", door_path(_KEY), token), pool, SystemClock())


async def test_a_stream_comes_through_the_door(tmp_path: Path) -> None:
    sink = Notebook()
    async with (
        scripted(says(SSE, chunk(TOKEN), chunk(DONE), LAST_CHUNK)) as server,
        _worker(tmp_path, server) as address,
        opened_pool() as pool,
    ):
        await _upstream(address, pool).serve(chat(stream=True), sink)

    assert sink.body == TOKEN + DONE
    assert server.requests[0].head.startswith("POST /v1/chat/completions HTTP/1.1")
    assert "right" not in server.requests[0].head


async def test_a_client_that_leaves_ends_the_generation_behind_the_door(tmp_path: Path) -> None:
    async with (
        scripted(says_and_hangs(SSE, chunk(TOKEN))) as server,
        _worker(tmp_path, server) as address,
        opened_pool() as pool,
        anyio.create_task_group() as tasks,
    ):
        sink = Notebook()
        tasks.start_soon(_upstream(address, pool).serve, chat(stream=True), sink)
        await sink.arrived.wait()

        tasks.cancel_scope.cancel()

        with anyio.CancelScope(shield=True):
            await wait_until(lambda: server.open == 0, within=1.0)


async def test_a_process_that_is_not_ready_has_no_model_loaded(tmp_path: Path) -> None:
    async with _worker(tmp_path, None) as address, opened_pool() as pool:
        with pytest.raises(UpstreamFailed, match="org/m#0 is not ready") as failed:
            await _upstream(address, pool).serve(chat(), Notebook())

    assert failed.value.fault is Fault.NOT_LOADED


async def test_a_process_that_died_is_told_apart_from_a_worker_that_did(tmp_path: Path) -> None:
    async with scripted(says()) as server:
        pass
    async with opened_pool() as pool:
        async with _worker(tmp_path, server) as address:
            with pytest.raises(UpstreamFailed, match="accepts no connections") as process_gone:
                await _upstream(address, pool).serve(chat(), Notebook())
        with pytest.raises(UpstreamFailed, match="could not be reached") as worker_gone:
            await _upstream(address, pool).serve(chat(), Notebook())

    assert process_gone.value.fault is Fault.NOT_LOADED
    assert worker_gone.value.fault is Fault.UNREACHABLE
    assert process_gone.value.unprocessed
    assert worker_gone.value.unprocessed


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_killed_in_mid_answer_breaks_the_answer(tmp_path: Path, stream: bool) -> None:
    sink = Notebook()
    async with (
        scripted(says(SSE, chunk(TOKEN), hang_up=True)) as server,
        _worker(tmp_path, server) as address,
        opened_pool() as pool,
    ):
        with pytest.raises(UpstreamFailed) as failed:
            await _upstream(address, pool).serve(chat(stream=stream), sink)

    assert failed.value.fault is Fault.BROKE
    assert sink.body == (TOKEN if stream else b"")


async def test_a_wrong_token_is_the_operators_trouble_and_not_the_clients(tmp_path: Path) -> None:
    async with _worker(tmp_path, None) as address, opened_pool() as pool:
        with pytest.raises(UpstreamFailed, match="same registration token") as failed:
            await _upstream(address, pool, token="wrong").serve(chat(), Notebook())

    assert (failed.value.status, failed.value.elsewhere) == (502, True)


RUNNING = ModelsRunningReply(models=(RunningModel(model_id="org/m", instance="i-1"),))


async def _one_runs() -> ModelsRunningReply:
    return RUNNING


async def test_worker_tells_over_http_which_processes_run(tmp_path: Path) -> None:
    async with _worker(tmp_path, None, _one_runs) as address, opened_pool() as pool:
        for _ in range(2):
            assert await HttpWorker(pool).running(ReplicaEndpoint(address, "http", token="right")) == RUNNING


async def test_worker_that_does_not_tell_what_runs_is_unreachable(tmp_path: Path) -> None:
    async with opened_pool() as pool:
        async with _worker(tmp_path, None, _one_runs) as address:
            with pytest.raises(NodeUnreachable, match="401"):
                await HttpWorker(pool).running(ReplicaEndpoint(address, "http", token="wrong"))
        for gone in (address, "127.0.0.1"):
            with pytest.raises(NodeUnreachable):
                await HttpWorker(pool).running(ReplicaEndpoint(gone, "http", token="right"))


async def test_worker_without_that_route_cannot_be_asked_so(tmp_path: Path) -> None:
    async with listening(probes(lambda: "")) as url, opened_pool() as pool:
        assert await HttpWorker(pool).running(ReplicaEndpoint(url.removeprefix("http://"), "http")) is None
