"""What a model writes for a session or a key ends with it, and nothing else does."""

from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest

from remuda.accounts.keys import KeyScope
from remuda.gateway.sessions import CONSOLE_HEADER, COOKIE
from tests.integration.api.openai.asking import ASK, CHAT, STREAM
from tests.support.raw_http import RawClient, post, raw_client
from tests.support.scripted_upstreams import Endless, Gateway, gateway, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def closed() -> AsyncIterator[Gateway]:
    """One that asks for keys, with a model whose answers do not end."""
    async with serving(gateway(keys_required=True)) as running:
        running.upstreams.script = Endless()
        yield running


def by_cookie(cookie: str) -> tuple[str, str]:
    return f"Cookie: {COOKIE}={cookie}", f"{CONSOLE_HEADER}: 1"


def by_key(secret: str) -> str:
    return f"Authorization: Bearer {secret}"


async def begun(client: RawClient, *headers: str) -> None:
    await client.send(post(CHAT, STREAM, *headers))
    assert (await client.head())[0] == 200
    assert await client.chunk()


async def rest(client: RawClient) -> bytes:
    """What a stream sends until it ends, which it has to do properly."""
    return b"".join([part async for part in client.chunks()])


async def test_a_stream_ends_when_its_session_is_signed_out_of_and_those_of_others_go_on(
    closed: Gateway,
) -> None:
    secret, key = await closed.keyring.create("ana", KeyScope.ADMIN)
    left, other = closed.sessions.begin(key), closed.sessions.begin(key)
    session = closed.sessions.of(left)
    assert session is not None
    async with (
        raw_client(closed.port) as copied,
        raw_client(closed.port) as same_key,
        raw_client(closed.port) as app,
    ):
        await begun(copied, *by_cookie(left))
        await begun(same_key, *by_cookie(other))
        await begun(app, by_key(secret))
        await closed.sessions.end(session)
        assert b"session is over" in await rest(copied)
        await anyio.wait_all_tasks_blocked()
        assert len(closed.running) == 2


@pytest.mark.parametrize("paused", [False, True], ids=["revoked", "paused"])
async def test_requests_under_way_end_when_their_key_is_revoked_or_paused(
    closed: Gateway, paused: bool
) -> None:
    secret, key = await closed.keyring.create("app", KeyScope.INFERENCE)
    endless = closed.upstreams.script = Endless()
    async with raw_client(closed.port) as stream, raw_client(closed.port) as whole:
        await begun(stream, by_key(secret))
        await whole.send(post(CHAT, ASK, by_key(secret)))
        await wait_until(lambda: endless.began == 2)
        if paused:
            await closed.keyring.edit(key.id, lambda one: replace(one, paused=True))
        else:
            await closed.keyring.revoke(key.id)
        assert b"its key was revoked" in await rest(stream)
        refused = await whole.reply()
    assert (refused.status, refused.json["error"]["code"]) == (401, "unauthorized")
    assert endless.stopped == 2


async def test_a_stream_goes_on_while_other_keys_come_and_go(closed: Gateway) -> None:
    secret, _ = await closed.keyring.create("app", KeyScope.INFERENCE)
    async with raw_client(closed.port) as client:
        await begun(client, by_key(secret))
        _, other = await closed.keyring.create("other", KeyScope.INFERENCE)
        await closed.keyring.revoke(other.id)
        await anyio.wait_all_tasks_blocked()
        assert len(closed.running) == 1


async def test_where_no_key_is_needed_nobody_is_shut_out(served: Gateway) -> None:
    served.upstreams.script = Endless()
    secret, key = await served.keyring.create("app", KeyScope.INFERENCE)
    async with raw_client(served.port) as client:
        await begun(client, by_key(secret))
        await served.keyring.revoke(key.id)
        await anyio.wait_all_tasks_blocked()
        assert len(served.running) == 1
