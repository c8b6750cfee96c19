"""A frontend whose own way to the bus is bad."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from structlog.testing import capture_logs

from tests.support.fault_proxy import HOST, FaultProxy, fault_proxy
from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.nats_servers import plain_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

UNHEALTHY_AFTER = timedelta(seconds=1)


@asynccontextmanager
async def linked(folder: Path) -> AsyncIterator[tuple[LiveFrontend, FaultProxy]]:
    """A frontend on a foreign bus, and the link between them."""
    async with (
        plain_server(folder) as server,
        fault_proxy(urlsplit(server.url).port or 0) as link,
        live_frontend(
            folder / "frontend",
            nats_url=f"nats://{HOST}:{link.port}",
            node_unhealthy_after=UNHEALTHY_AFTER,
        ) as frontend,
    ):
        yield frontend, link


async def test_a_frontend_in_a_black_hole_judges_nobody(tmp_path: Path) -> None:
    async with linked(tmp_path) as (frontend, link):
        node = (await frontend.register())["id"]
        with capture_logs() as logs:
            link.stall()
            await wait_until(lambda: "liveness_lost" in [entry["event"] for entry in logs])
        enough = anyio.current_time() + 3 * UNHEALTHY_AFTER.total_seconds()

        async def outlasted() -> bool:
            assert await frontend.status(node) == "healthy"
            return anyio.current_time() > enough

        await wait_until(outlasted)
        link.resume()

        async def judged() -> bool:
            return await frontend.status(node) == "unhealthy"

        await wait_until(judged, what="the silence to count, now that it is listened to")


async def test_a_frontend_that_hears_late_keeps_its_connection(tmp_path: Path) -> None:
    async with linked(tmp_path) as (frontend, link):
        with capture_logs() as logs:
            link.slow(delay_s=1.3)
            await wait_until(lambda: "liveness_lost" in [entry["event"] for entry in logs])
            link.slow(delay_s=0)
            await wait_until(lambda: "liveness_began" in [entry["event"] for entry in logs])
        assert link.accepted == 2, "one for what is said, one for progress"
        assert (await frontend.anyone.get("/readyz")).status_code == 200
