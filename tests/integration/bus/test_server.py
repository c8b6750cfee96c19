"""The bundled server: ready when it says so, back when killed, rid of those it was told to shut out."""

import os
import signal
import stat
import subprocess
from datetime import timedelta
from pathlib import Path

import anyio
import psutil
import pytest

from remuda.bus.auth import account_user, issued
from remuda.bus.credentials import BusUser, ClusterKeys
from remuda.bus.messages import Connected
from remuda.bus.server import NatsServer, find_binary
from remuda.core.errors import Misconfigured
from remuda.core.ids import NodeId
from remuda.host.children import LaunchSpec, running
from remuda.host.ports import free_port, listen
from tests.support.nats_servers import (
    CLOCK,
    ENTROPY,
    HOST,
    connected,
    connecting,
    operator_server,
    until_down,
    until_shut_out,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

KEYS = ClusterKeys.create(ENTROPY)
SOON = timedelta(seconds=10)


def server_pid(folder: Path) -> int:
    return int((folder / "server.pid").read_text())


def is_taken(port: int) -> bool:
    return free_port(HOST, [port]) != port


def worker_user(node: str) -> BusUser:
    return KEYS.account.mint_worker(
        "backend",
        NodeId(node),
        subscribe=[f"nodes.{node}.>"],
        publish=[],
        now=CLOCK.now(),
        ttl=timedelta(hours=1),
    )


async def refuses(server: NatsServer, user: BusUser) -> bool:
    async with connecting(server.url, issued(lambda: user)) as bus:
        return "does not accept our credentials" in await until_down(bus)


async def test_it_comes_back_after_kill_9_and_so_do_its_clients(tmp_path: Path) -> None:
    async with (
        operator_server(tmp_path, KEYS) as server,
        connected(server.url, account_user(KEYS.account, "f", CLOCK)) as bus,
    ):
        first = server_pid(tmp_path)
        os.kill(first, signal.SIGKILL)
        await until_down(bus)
        with anyio.fail_after(20):
            await bus.wait_connected()
        assert server_pid(tmp_path) != first
        await bus.round_trip(SOON)


async def test_it_is_gone_when_its_owner_stops(tmp_path: Path) -> None:
    async with operator_server(tmp_path, KEYS):
        process = psutil.Process(server_pid(tmp_path))
    assert not process.is_running()


async def test_a_revoked_user_is_out_at_once_and_stays_out_after_a_restart(tmp_path: Path) -> None:
    removed, kept = worker_user("1"), worker_user("2")
    async with (
        operator_server(tmp_path, KEYS) as server,
        connected(server.url, issued(lambda: removed)) as out,
        connected(server.url, issued(lambda: kept)) as stays,
    ):
        await server.revoke({KEYS.account.worker_public_key(NodeId("1")): CLOCK.now()})
        await until_shut_out(out)
        assert isinstance(stays.state, Connected)
        os.kill(server_pid(tmp_path), signal.SIGKILL)
        await until_down(stays)
        with anyio.fail_after(20):
            await stays.wait_connected()
        assert await refuses(server, removed)


async def test_revocations_outlive_the_server_that_took_them(tmp_path: Path) -> None:
    first, second, kept = (worker_user(node) for node in ("1", "2", "3"))
    async with operator_server(tmp_path, KEYS) as server:
        await server.revoke({first.public_key: CLOCK.now()})
    await server.revoke({second.public_key: CLOCK.now()})  # It does not run: counts from the next start.
    async with operator_server(tmp_path, KEYS) as server:
        assert await refuses(server, first)
        assert await refuses(server, second)
        async with connected(server.url, issued(lambda: kept)):
            pass


async def test_several_revocations_within_a_second_all_hold(tmp_path: Path) -> None:
    users = [worker_user(node) for node in ("1", "2", "3")]
    async with operator_server(tmp_path, KEYS) as server:
        for user in users:
            await server.revoke({user.public_key: CLOCK.now()})
        assert all([await refuses(server, user) for user in users])


def left_behind(folder: Path) -> subprocess.Popen[bytes]:
    """Not the event loop's child: who takes it over may be the first to collect its exit code."""
    return subprocess.Popen([find_binary(), "--config", folder / "server.json"])


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_a_server_left_by_an_earlier_life_is_taken_over_with_its_port(tmp_path: Path) -> None:
    async with operator_server(tmp_path, KEYS) as server:
        port = server.port
    (tmp_path / "server.pid").unlink(missing_ok=True)
    orphan = left_behind(tmp_path)
    pid_file = tmp_path / "server.pid"
    await wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
    async with anyio.create_task_group() as tasks:
        again = NatsServer(tmp_path, KEYS, host=HOST, port=None, clock=CLOCK, credentials_ttl=SOON)
        await tasks.start(again.run)
        assert again.port == port
        await wait_until(lambda: gone(orphan.pid))
        tasks.cancel_scope.cancel()
    orphan.wait()


async def test_a_stranger_with_the_old_process_id_is_left_alone(tmp_path: Path) -> None:
    async with running(LaunchSpec("stranger", ("/bin/sleep", "60"), env={})) as stranger:
        (tmp_path / "server.pid").write_text(str(stranger.pid))
        async with operator_server(tmp_path, KEYS):
            assert psutil.Process(stranger.pid).is_running()


async def test_a_port_in_use_stops_the_start_naming_the_setting(tmp_path: Path) -> None:
    with listen(HOST, 0) as taken:
        server = NatsServer(
            tmp_path,
            KEYS,
            host=HOST,
            port=taken.getsockname()[1],
            clock=CLOCK,
            credentials_ttl=SOON,
        )
        with pytest.raises(Misconfigured, match="--nats-port"):
            await server.run()


async def test_servers_started_at_one_moment_find_ports_of_their_own(tmp_path: Path) -> None:
    fleets = [(tmp_path / name, ClusterKeys.create(ENTROPY)) for name in ("a", "b", "c")]
    servers = [
        NatsServer(folder, keys, host=HOST, port=None, clock=CLOCK, credentials_ttl=SOON)
        for folder, keys in fleets
    ]
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as starting:
                for server in servers:
                    starting.start_soon(tasks.start, server.run)
            assert len({server.port for server in servers}) == 3
            tasks.cancel_scope.cancel()


async def test_port_zero_is_a_free_one(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, KEYS, host=HOST, port=0, clock=CLOCK, credentials_ttl=SOON)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        assert is_taken(server.port)
        tasks.cancel_scope.cancel()


async def test_its_files_are_for_this_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "nats"
    async with operator_server(folder, KEYS):
        for file in (folder / "server.json", *(folder / "accounts").glob("*.jwt")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


async def test_users_of_another_fleet_are_not_let_in(tmp_path: Path) -> None:
    stranger = ClusterKeys.create(ENTROPY).account.mint_frontend("f", now=CLOCK.now())
    async with operator_server(tmp_path, KEYS) as server:
        assert await refuses(server, stranger)
