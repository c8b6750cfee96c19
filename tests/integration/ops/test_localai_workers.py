"""Workers that know only LocalAI's contract: no reports, no `seq`, and some without `backend.upgrade`."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from remuda.assembly import operations
from remuda.core.ids import NodeId
from remuda.host.folder import DataFolder
from remuda.ops.inventories import Inventories
from remuda.ops.model import Kind, State
from remuda.store.database import open_database
from tests.peers.localai_worker import JSON, LocalAiWorker, WorkerOptions
from tests.support.frontends import live_frontend
from tests.support.nats_servers import CLOCK, connected, plain_server
from tests.support.ops_rig import BUILD, OpsFrontend, ops_frontend
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Peer(LocalAiWorker):
    """It remembers what it installed, and may lose replies or lack subjects."""

    def __init__(
        self, options: WorkerOptions, *, loses_replies: bool = False, lacks: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(options)
        self.installed: set[str] = set()
        self._loses_replies = loses_replies
        self._lacks = lacks

    def times(self, verb: str) -> int:
        return sum(heard == verb for heard, _ in self.received)

    async def _on(self, bus: Client, verb: str, handle: Callable[[Msg, JSON], Awaitable[None]]) -> None:
        if verb in self._lacks:
            return
        if verb == "backend.list":
            handle = partial(self._reply, self._listed)
        await super()._on(bus, verb, handle)

    def _listed(self, request: JSON) -> JSON:
        rows = [{"name": name, "is_system": False, "is_meta": False} for name in sorted(self.installed)]
        return {"backends": rows or None}

    async def _install(self, bus: Client, done: JSON, message: Msg, body: JSON) -> None:
        if not self._loses_replies:
            await super()._install(bus, done, message, body)
        self.installed.add(BUILD)


@asynccontextmanager
async def driving(
    folder: Path,
    *,
    install_s: float = 0.0,
    loses_replies: bool = False,
    lacks: frozenset[str] = frozenset(),
    install_timeout: str = "15m",
) -> AsyncIterator[tuple[OpsFrontend, Peer]]:
    """A whole frontend, a peer that registered with it, and somebody on the same database who looks."""
    data_dir = folder / "frontend"
    async with (
        plain_server(folder) as server,
        live_frontend(data_dir, nats_url=server.url, nats_backend_install_timeout=install_timeout) as api,
        connected(server.url) as bus,
        anyio.create_task_group() as tasks,
    ):
        options = WorkerOptions(
            api.url, server.url, "peer", token=api.token, heartbeat_s=0.5, install_s=install_s
        )
        peer = Peer(options, loses_replies=loses_replies, lacks=lacks)
        with anyio.fail_after(20):
            await tasks.start(peer.run)
        database = await open_database(f"sqlite:///{DataFolder(data_dir).database.absolute()}", clock=CLOCK)
        async with ops_frontend(bus, database, CLOCK, name="observer", reconciles=False) as observer:
            yield observer, peer
        await database.close()
        tasks.cancel_scope.cancel()


async def until_state(frontend: OpsFrontend, state: State) -> None:
    async def reached() -> bool:
        return (await frontend.step()).state is state

    await wait_until(reached, within=20, what=f"state {state}")


async def test_it_installs_and_its_progress_is_shown(tmp_path: Path) -> None:
    async with driving(tmp_path, install_s=4.0) as (frontend, peer):
        op = await frontend.submit([NodeId(peer.id)])

        async def shown() -> bool:
            return any(one.phase == "downloading" for _, one in (await frontend.store.view(op)).progress)

        await wait_until(shown)
        await until_state(frontend, State.SUCCEEDED)
        assert (await frontend.step()).attempt == 1


async def test_a_slow_install_is_running_beyond_the_timeout_and_then_succeeds(tmp_path: Path) -> None:
    async with driving(tmp_path, install_s=3.0, install_timeout="500ms") as (frontend, peer):
        await frontend.submit([NodeId(peer.id)])
        await wait_until(lambda: peer.times("backend.list"))  # It is overdue.
        step = await frontend.step()
        assert (step.state, step.attempt, step.failures) == (State.RUNNING, 1, 0)
        await until_state(frontend, State.SUCCEEDED)
        assert ((await frontend.step()).attempt, peer.times("backend.install")) == (1, 1)


async def test_a_lost_reply_is_made_up_for_by_its_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = partial(Inventories, every=timedelta(seconds=2))
    monkeypatch.setattr(operations, "Inventories", often)
    async with driving(tmp_path, loses_replies=True, install_timeout="500ms") as (frontend, peer):
        await frontend.submit([NodeId(peer.id)])
        await until_state(frontend, State.SUCCEEDED)
        assert ((await frontend.step()).attempt, peer.times("backend.install")) == (1, 1)


async def test_one_without_upgrades_is_upgraded_by_a_forced_install(tmp_path: Path) -> None:
    async with driving(tmp_path, lacks=frozenset({"backend.upgrade"})) as (frontend, peer):
        with capture_logs() as lines:
            await frontend.submit([NodeId(peer.id)], Kind.UPGRADE)
            await until_state(frontend, State.SUCCEEDED)
        assert "upgrade_fell_back_to_forced_install" in [line["event"] for line in lines]
        ((_, body),) = [heard for heard in peer.received if heard[0] == "backend.install"]
        assert json.loads(json.dumps(body))["force"] is True


async def test_one_with_upgrades_is_upgraded_by_their_own_subject(tmp_path: Path) -> None:
    async with driving(tmp_path) as (frontend, peer):
        await frontend.submit([NodeId(peer.id)], Kind.UPGRADE)
        await until_state(frontend, State.SUCCEEDED)
        assert (peer.times("backend.upgrade"), peer.times("backend.install")) == (1, 0)


async def test_it_removes(tmp_path: Path) -> None:
    async with driving(tmp_path) as (frontend, peer):
        await frontend.submit([NodeId(peer.id)], Kind.REMOVE)
        await until_state(frontend, State.SUCCEEDED)
        assert peer.times("backend.delete") == 2, "by its build's name, and by the one it was asked for"
