"""The connection: comes back by itself, moves over without loss, and says plainly why it is down."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.lowlevel import checkpoint
from pydantic import SecretStr
from structlog.testing import capture_logs

from remuda.bus.auth import TlsFiles, UserPassword, account_user, anonymous, creds_file, fixed, issued
from remuda.bus.credentials import BusUser, ClusterKeys
from remuda.bus.messages import Connected, Down, Incoming, NoResponders
from remuda.core.errors import BusUnusable
from remuda.core.ids import NodeId
from remuda.host.ports import free_port
from tests.support.nats_servers import (
    CLOCK,
    ENTROPY,
    HOST,
    IMPATIENT,
    connected,
    connecting,
    make_certificates,
    operator_server,
    password_settings,
    plain_server,
    until_down,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SOON = timedelta(seconds=10)
SECRET = "s3cret/with@signs"


async def echo(message: Incoming) -> None:
    assert message.respond is not None
    await message.respond(message.payload)


@asynccontextmanager
async def wiretap() -> AsyncIterator[tuple[int, bytearray]]:
    """A server without TLS that greets and answers pings; its port, and all that was said to it."""
    heard = bytearray()

    async def serve(client: SocketStream) -> None:
        async with client:
            await client.send(b'INFO {"server_id":"x","version":"2","max_payload":1024}\r\n')
            async for received in client:
                heard.extend(received)
                await client.send(b"PONG\r\n" * received.count(b"PING\r\n"))

    async with (
        await anyio.create_tcp_listener(local_host=HOST) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port), heard
        tasks.cancel_scope.cancel()


async def test_subscriptions_work_again_after_the_server_was_killed(tmp_path: Path) -> None:
    port = free_port(HOST)
    async with plain_server(tmp_path, port=port) as server, connected(server.url) as bus:
        await bus.subscribe("nodes.1.echo", echo)
        server.kill()
        await until_down(bus)
        async with plain_server(tmp_path, port=port):
            with anyio.fail_after(20):
                await bus.wait_connected()
            assert await bus.request("nodes.1.echo", b"again", SOON) == b"again"


async def test_open_requests_fail_at_once_when_the_server_dies(tmp_path: Path) -> None:
    async def die(message: Incoming) -> None:
        server.kill()

    async with plain_server(tmp_path) as server, connected(server.url) as bus:
        await bus.subscribe("nodes.1.die", die)
        with anyio.fail_after(10), pytest.raises(BusUnusable, match="lost"):
            await bus.request("nodes.1.die", b"", timedelta(minutes=15))


async def test_a_link_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    async with plain_server(tmp_path) as server, connected(server.url, timeouts=IMPATIENT) as bus:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert "did not answer" in await until_down(bus)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        with anyio.fail_after(20):
            await bus.wait_connected()


async def test_subscribing_waits_for_the_bus_to_come_up(tmp_path: Path) -> None:
    port = free_port(HOST)
    async with connecting(f"nats://{HOST}:{port}") as bus, anyio.create_task_group() as tasks:
        tasks.start_soon(bus.subscribe, "nodes.1.echo", echo)
        await until_down(bus)
        async with plain_server(tmp_path, port=port) as server, connected(server.url) as frontend:

            async def answered() -> bool:
                try:
                    return await frontend.request("nodes.1.echo", b"hi", SOON) == b"hi"
                except NoResponders:
                    return False

            await wait_until(answered)


async def test_the_state_says_since_when_and_changes_wake_observers(tmp_path: Path) -> None:
    port = free_port(HOST)
    async with connecting(f"nats://{HOST}:{port}") as bus:
        assert (await until_down(bus)).startswith(
            f"cannot connect to the bus at {HOST}:{port} (connection refused); "
        )
        first = bus.state
        with anyio.fail_after(20):
            await bus.changed.wait()
        assert bus.state == first, "one more failure does not make it down since a later time"
        async with plain_server(tmp_path, port=port):
            with anyio.fail_after(20):
                await bus.wait_connected()
    assert isinstance(bus.state, Down)


async def test_rotation_under_traffic_repeats_nothing_and_leaves_no_gap(tmp_path: Path) -> None:
    """The server itself may drop a message that it had handed to a link in the moment that link took leave,
    so one message per rotation is let go; a gap between two links would cost hundreds."""
    count, rotations = 3000, 0
    heard: list[int] = []

    async def hear(message: Incoming) -> None:
        heard.append(int(message.payload))

    async def speak() -> None:
        for number in range(count):
            await other.publish("count", b"%d" % number)
            await checkpoint()

    async with plain_server(tmp_path) as server, connected(server.url) as bus, connected(server.url) as other:
        await bus.subscribe("count", hear, queue_limit=count)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(speak)
            with anyio.fail_after(20):
                while len(heard) < count * 0.9:
                    changed = bus.changed
                    bus.rotate()
                    rotations += 1
                    await changed.wait()
        for one in (other, bus):
            await one.round_trip(SOON)
        await wait_until(lambda: len(heard) >= count - rotations)
    assert len(set(heard)) == len(heard)


async def test_work_begun_before_a_rotation_is_answered_after_it(tmp_path: Path) -> None:
    keys = ClusterKeys.create(ENTROPY)
    rotated = anyio.Event()

    async def slow(message: Incoming) -> None:
        bus.rotate()
        await rotated.wait()
        await echo(message)

    def credentials() -> BusUser:
        return keys.account.mint_worker(
            "backend",
            NodeId("1"),
            subscribe=["nodes.1.>"],
            publish=[],
            now=CLOCK.now(),
            ttl=timedelta(hours=1),
        )

    async with (
        operator_server(tmp_path, keys) as server,
        connected(server.url, issued(credentials)) as bus,
        connected(server.url, account_user(keys.account, "f", CLOCK)) as frontend,
    ):
        await bus.subscribe("nodes.1.slow", slow)
        async with anyio.create_task_group() as tasks:
            changed = bus.changed

            async def release() -> None:
                await changed.wait()
                rotated.set()

            tasks.start_soon(release)
            assert await frontend.request("nodes.1.slow", b"done", SOON) == b"done"


async def test_credentials_that_ran_out_are_replaced_by_what_the_callable_returns(tmp_path: Path) -> None:
    keys = ClusterKeys.create(ENTROPY)
    lifetimes = [timedelta(hours=1), timedelta(seconds=2), timedelta(seconds=-5)]

    def credentials() -> BusUser:
        return keys.account.mint_frontend("f", now=CLOCK.now(), ttl=lifetimes.pop())

    async with operator_server(tmp_path, keys) as server:
        with capture_logs() as logs:
            async with connected(server.url, issued(credentials)) as bus:
                await bus.subscribe("a", echo)
                await wait_until(lambda: not lifetimes, what="the second credentials to run out")
                with anyio.fail_after(20):
                    await bus.wait_connected()
                assert await bus.request("a", b"renewed", SOON) == b"renewed"
    reasons = [entry["reason"] for entry in logs if "reason" in entry]
    assert any("does not accept our credentials" in reason for reason in reasons)
    assert any("user authentication expired" in reason for reason in reasons)


@pytest.mark.parametrize("place", ["url", "settings"])
async def test_user_and_password_from_settings_or_url(tmp_path: Path, place: str) -> None:
    async with plain_server(tmp_path, password_settings("me", SECRET)) as server:
        in_url = server.url.replace("//", "//me:s3cret%2Fwith%40signs@")
        given = fixed(UserPassword("me", SecretStr(SECRET)))
        url, auth = (in_url, anonymous) if place == "url" else (server.url, given)
        async with connected(url, auth) as bus:
            await bus.subscribe("a", echo)
            assert await bus.request("a", b"in", SOON) == b"in"


async def test_a_creds_file_logs_in(tmp_path: Path) -> None:
    keys = ClusterKeys.create(ENTROPY)
    user = keys.account.mint_frontend("f", now=CLOCK.now())
    file = tmp_path / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user.jwt}\n------END NATS USER JWT------\n\nKeep it secret.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.get_secret_value()}\n------END USER NKEY SEED------\n"
    )
    async with (
        operator_server(tmp_path / "nats", keys) as server,
        connected(server.url, creds_file(file)) as bus,
    ):
        assert isinstance(bus.state, Connected)


async def test_an_account_seed_mints_its_own_user(tmp_path: Path) -> None:
    keys = ClusterKeys.create(ENTROPY)
    async with (
        operator_server(tmp_path, keys) as server,
        connected(server.url, account_user(keys.account, "f", CLOCK)) as bus,
    ):
        assert isinstance(bus.state, Connected)


async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with (
        plain_server(tmp_path, certificates.server_settings) as server,
        connected(server.url, tls=certificates.client) as bus,
    ):
        await bus.subscribe("a", echo)
        assert await bus.request("a", b"sealed", SOON) == b"sealed"


async def test_without_its_client_certificate_it_is_turned_away(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    only_ca = TlsFiles(ca=certificates.client.ca)
    async with (
        plain_server(tmp_path, certificates.server_settings) as server,
        connecting(server.url, tls=only_ca) as bus,
    ):
        assert "certificate" in (await until_down(bus)).lower()


async def test_a_server_of_another_authority_is_not_trusted(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with (
        plain_server(tmp_path, certificates.server_settings) as server,
        connecting(server.url.replace("nats:", "tls:")) as bus,
    ):
        assert "CERTIFICATE_VERIFY_FAILED" in await until_down(bus)


async def test_where_tls_is_demanded_nothing_is_said_in_the_clear() -> None:
    async with wiretap() as (port, heard), connecting(f"tls://me:{'pw'}@{HOST}:{port}") as bus:
        assert "does not offer TLS" in await until_down(bus)
        assert bytes(heard) == b""


async def test_a_subscription_is_on_the_wire_before_the_ping_that_confirms_it() -> None:
    async with wiretap() as (port, heard), connected(f"nats://{HOST}:{port}") as bus:
        await bus.subscribe("nodes.1.echo", echo)
        assert heard.index(b"SUB nodes.1.echo") < heard.rindex(b"PING")


async def test_wrong_passwords_are_a_visible_reason(tmp_path: Path) -> None:
    async with (
        plain_server(tmp_path, password_settings("me", "right")) as server,
        connecting(server.url.replace("//", f"//me:{'wrong'}@")) as bus,
    ):
        assert (await until_down(bus)).startswith(f"the bus at {server.url} does not accept our credentials")


async def test_secrets_are_in_no_log_no_reason_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    keys = ClusterKeys.create(ENTROPY)
    user = keys.account.mint_frontend("f", now=CLOCK.now(), ttl=timedelta(seconds=-1))
    reasons: list[str] = []
    with capture_logs() as logs:
        async with (
            plain_server(tmp_path, password_settings("me", "other")) as server,
            connecting(server.url.replace("//", "//me:s3cret%2Fwith%40signs@")) as bus,
        ):
            reasons.append(await until_down(bus))
        async with (
            operator_server(tmp_path / "nats", keys) as bundled,
            connecting(bundled.url, issued(lambda: user)) as bus,
        ):
            reasons.append(await until_down(bus))
    said = repr((logs, reasons, capsys.readouterr(), caplog.text, user, keys))
    files = [file.read_text() for file in (tmp_path / "nats").rglob("*") if file.is_file()]
    seeds = (keys.operator_seed, keys.system_account_seed, keys.account_seed, user.seed)
    for secret in ("s3cret", *(seed.get_secret_value() for seed in seeds)):
        assert secret not in said
        assert not any(secret in text for text in files)
