"""The stream of one console whose client takes nothing, and what it is told when links are lost."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import anyio
import pytest
from starlette.requests import Request
from starlette.types import Message

from remuda.core.errors import StoreUnusable
from remuda.core.events import Notifier
from remuda.gateway import shut_out
from remuda.gateway.events import hub as hub_module
from remuda.gateway.events import routes
from remuda.gateway.events.changes import Rendered
from remuda.gateway.events.hub import EventHub, Trouble
from remuda.gateway.services import Services
from tests.unit.router.frontends import HandClock

pytestmark = pytest.mark.anyio
SHOWN: Rendered = {"nodes": {"n": b'{"id":"n"}'}}


class Frontend:
    """What a look finds, and what is wrong with it."""

    def __init__(self) -> None:
        self.store_down = False
        self.bus_trouble: Trouble | None = None
        self.news = Notifier()
        self.clock = HandClock()
        self.unwatched = anyio.Event()
        self.hub = EventHub(
            self._look,
            lambda: self.news.changed,
            self._watched,
            lambda: self.bus_trouble,
            self.clock,
            "life",
        )

    async def _look(self) -> Rendered:
        if self.store_down:
            raise StoreUnusable("the database does not answer")
        return SHOWN

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        self.unwatched = anyio.Event()
        yield
        self.unwatched.set()


@pytest.fixture
async def frontend(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Frontend]:
    monkeypatch.setattr(hub_module, "REST_S", 0.01)
    monkeypatch.setattr(hub_module, "LOOK_EVERY_S", 0.02)
    made = Frontend()
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.hub.run)
        yield made
        tasks.cancel_scope.cancel()


async def test_a_client_that_takes_nothing_is_cut_off(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(routes, "STALL_S", 0.1)
    monkeypatch.setattr(shut_out, "admin_name", lambda *_: "admin")
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if b"snapshot" in message.get("body", b""):
            await anyio.sleep_forever()

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    console, keyring = SimpleNamespace(events=frontend.hub), SimpleNamespace(changed=anyio.Event())
    svc = cast(Services, SimpleNamespace(console=console, keyring=keyring))
    request = Request({"type": "http", "method": "GET", "path": "/api/events", "headers": []})
    with anyio.fail_after(10):
        await (await routes.events(request, svc))(request.scope, receive, send)
    assert sent[-1] == {"type": "http.response.body"}
    assert "console_cut_off" in capsys.readouterr().out


async def test_a_store_that_does_not_answer_is_trouble_until_it_does(frontend: Frontend) -> None:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            events = frontend.hub.events("")
            assert b"event: snapshot" in await anext(events)
            frontend.store_down = True
            frontend.news.notify()
            told = await anext(events)
            assert b"event: trouble" in told
            assert b"the database does not answer" in told
            frontend.store_down = False
            frontend.news.notify()
            assert await anext(events) == b"event: well\ndata: {}\n\n"
            tasks.cancel_scope.cancel()


async def first(frontend: Frontend, stay_s: float | None = None) -> bytes:
    """What a console is sent first, which leaves then."""
    events = frontend.hub.events("", stay_s)
    told = await anext(events)
    await cast(AsyncGenerator[bytes], events).aclose()
    return told


async def test_a_page_that_is_loaded_anew_waits_for_no_look(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "REST_S", 3600.0)  # There is one look.
    with anyio.fail_after(10):
        for _ in range(3):
            assert b"event: snapshot" in await first(frontend)


async def test_soon_after_the_last_console_has_gone_nothing_is_looked_at(frontend: Frontend) -> None:
    with anyio.fail_after(10):
        assert b"event: snapshot" in await first(frontend)
        assert not frontend.unwatched.is_set()
        frontend.clock.passed_s += hub_module.LINGER_S
        frontend.news.notify()
        await frontend.unwatched.wait()
        assert b"event: snapshot" in await first(frontend)


async def test_a_program_is_told_what_is_there_now(frontend: Frontend) -> None:
    with anyio.fail_after(10):
        assert b"event: snapshot" in await first(frontend)
        frontend.store_down = True
        assert b"event: trouble" in await first(frontend, 0)
