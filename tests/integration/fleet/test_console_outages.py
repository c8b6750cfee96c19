"""A console while the database or the bus of its frontend is away: it is told so, and when that is over."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from remuda.host.ports import free_port
from tests.support.event_streams import Console, console
from tests.support.frontends import live_frontend
from tests.support.nats_servers import HOST, plain_server
from tests.support.postgres import postgres_server

pytestmark = pytest.mark.anyio


@pytest.mark.long
async def test_what_is_shown_is_said_to_be_old_while_the_store_or_the_bus_is_away(tmp_path: Path) -> None:
    port = free_port(HOST)
    with postgres_server() as postgres:
        links: dict[str, Any] = {"database_url": postgres.new_database(), "nats_url": f"nats://{HOST}:{port}"}
        async with (
            plain_server(tmp_path, port=port) as bus,
            live_frontend(tmp_path / "f", **links) as frontend,
            console(frontend.admin) as shown,
        ):
            await shown.until(lambda one: one.events)
            await to_thread.run_sync(postgres.kill)
            await shown.until(troubled_by("store_unusable"))
            await to_thread.run_sync(postgres.start)
            await shown.until(is_well)
            bus.kill()
            await shown.until(troubled_by("bus_unusable"))
            async with plain_server(tmp_path, port=port):
                await shown.until(is_well)
                await frontend.register("afterwards")
                await shown.until(lambda one: "afterwards" in one.named("nodes"))
            assert not shown.ended, "one connection has seen it all"


def troubled_by(code: str) -> Callable[[Console], bool]:
    return lambda shown: shown.trouble is not None and shown.trouble["code"] == code


def is_well(shown: Console) -> bool:
    return shown.trouble is None
