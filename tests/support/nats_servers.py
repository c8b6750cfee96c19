"""Real nats-servers on free loopback ports, and buses connected to them."""

import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio
import trustme

from remuda.bus.auth import AuthSource, TlsFiles, anonymous
from remuda.bus.client import DEFAULT_TIMEOUTS, Bus, BusTimeouts
from remuda.bus.credentials import ClusterKeys
from remuda.bus.messages import Down
from remuda.bus.server import NatsServer, find_binary
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.retry import Backoff
from remuda.host.children import LaunchSpec, running
from remuda.host.ports import free_port
from remuda.host.restarts import RestartPolicy
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
CLOCK = SystemClock()
ENTROPY = SystemEntropy()
QUICK_BACKOFF = Backoff(first=timedelta(milliseconds=10), most=timedelta(milliseconds=100))
IMPATIENT = BusTimeouts(ping_every=timedelta(milliseconds=50), answer_within=timedelta(milliseconds=500))
QUICK_RESTARTS = RestartPolicy(
    first=timedelta(milliseconds=10),
    most=timedelta(milliseconds=100),
    healthy_after=timedelta(seconds=10),
    give_up_after=4,
)


@dataclass(frozen=True, slots=True)
class PlainServer:
    """A server as others would run it."""

    url: str
    pid: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@asynccontextmanager
async def plain_server(
    folder: Path, settings: Mapping[str, object] | None = None, port: int | None = None
) -> AsyncIterator[PlainServer]:
    """A server that answers when the block begins. Without settings everybody may do everything."""
    port = port or free_port(HOST)
    config = folder / f"nats-{port}.json"
    config.write_text(json.dumps({"host": HOST, "port": port, **(settings or {})}))
    lines: list[str] = []
    spec = LaunchSpec("nats-server", (str(find_binary()), "-c", str(config)), env={}, output=lines.append)
    async with running(spec) as child:
        await wait_until(lambda: any("Server is ready" in line for line in lines))
        yield PlainServer(f"nats://{HOST}:{port}", child.pid)


def password_settings(user: str, password: str) -> Mapping[str, object]:
    return {"authorization": {"user": user, "password": password}}


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of one authority: the server's pair, a client's pair, and the authority itself."""

    server: TlsFiles
    client: TlsFiles

    @property
    def server_settings(self) -> Mapping[str, object]:
        """For a server that demands client certificates."""
        files = self.server
        return {
            "tls": {
                "cert_file": str(files.cert),
                "key_file": str(files.key),
                "ca_file": str(files.ca),
                "verify": True,
            }
        }


def make_certificates(folder: Path) -> Certificates:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")

    def issue(name: str) -> TlsFiles:
        pair = authority.issue_cert(name)
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        pair.cert_chain_pems[0].write_to_path(cert)
        pair.private_key_pem.write_to_path(key)
        return TlsFiles(folder / "ca.pem", cert, key)

    return Certificates(server=issue(HOST), client=issue("client.example"))


@asynccontextmanager
async def operator_server(
    folder: Path, keys: ClusterKeys, *, port: int | None = None, ttl: timedelta = timedelta(days=1)
) -> AsyncIterator[NatsServer]:
    """The bundled server, ready."""
    server = NatsServer(
        folder,
        keys,
        host=HOST,
        port=port or free_port(HOST),
        clock=CLOCK,
        credentials_ttl=ttl,
        restarts=QUICK_RESTARTS,
    )
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(20):
            await tasks.start(server.run)
        yield server
        tasks.cancel_scope.cancel()


def make_bus(
    url: str,
    auth: AuthSource = anonymous,
    tls: TlsFiles | None = None,
    timeouts: BusTimeouts = DEFAULT_TIMEOUTS,
) -> Bus:
    return Bus(
        url,
        auth,
        name="test",
        tls=tls,
        timeouts=timeouts,
        backoff=QUICK_BACKOFF,
        entropy=ENTROPY,
        clock=CLOCK,
    )


@asynccontextmanager
async def connecting(
    url: str,
    auth: AuthSource = anonymous,
    tls: TlsFiles | None = None,
    timeouts: BusTimeouts = DEFAULT_TIMEOUTS,
) -> AsyncIterator[Bus]:
    """A bus that runs, whether or not it ever connects, and ends with the block."""
    bus = make_bus(url, auth, tls, timeouts)
    async with anyio.create_task_group() as tasks:
        await tasks.start(bus.run)
        yield bus
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def connected(
    url: str,
    auth: AuthSource = anonymous,
    tls: TlsFiles | None = None,
    timeouts: BusTimeouts = DEFAULT_TIMEOUTS,
) -> AsyncIterator[Bus]:
    """A bus that is connected when the block begins."""
    async with connecting(url, auth, tls, timeouts) as bus:
        with anyio.fail_after(20):
            await bus.wait_connected()
        yield bus


async def until_down(bus: Bus) -> str:
    """Wait until the bus is down, and return the reason it gives."""
    with anyio.fail_after(20):
        while not isinstance(bus.state, Down):
            await bus.changed.wait()
    return bus.state.reason


async def until_shut_out(bus: Bus) -> None:
    """Wait until the server turns this login away: it says so when it hangs up, and in other words when we
    call again, which a busy test may see first."""
    reason = await until_down(bus)
    assert "revoked" in reason or "does not accept our credentials" in reason, reason
