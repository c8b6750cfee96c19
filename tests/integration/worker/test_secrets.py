"""A worker's whole log, at its most talkative, holds none of the secrets it works with."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pydantic import SecretStr

from remuda.core import log
from remuda.worker.enrolment import BusPolicy, WorkerPhase
from tests.integration.worker.rig import OFTEN, running, wait_for_phase
from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.nats_servers import password_settings, plain_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

BUS_PASSWORD, TOKEN = "hunter2hunter2", "t0kent0ken"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    log.configure("debug", "json", stream)
    yield stream
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


async def test_bus_password_and_token_stay_out_of_the_log(tmp_path: Path, lines: io.StringIO) -> None:
    async with (
        LocalAiFrontend(token=TOKEN) as frontend,
        plain_server(tmp_path, password_settings("w", BUS_PASSWORD)) as nats,
    ):
        url = nats.url.replace("nats://", f"nats://w:{BUS_PASSWORD}@")
        bus, token = BusPolicy(url=url), SecretStr(TOKEN)
        async with running(frontend.url, bus=bus, token=token, heartbeat_interval=OFTEN) as worker:
            await wait_for_phase(worker, WorkerPhase.READY)
            frontend.misbehaviour["heartbeat"] = 500
            await wait_until(lambda: "heartbeat_failed" in lines.getvalue())
            nats.kill()
            await wait_for_phase(worker, WorkerPhase.CONNECTING)
    assert "bus_lost" in lines.getvalue()
    assert BUS_PASSWORD not in lines.getvalue()
    assert TOKEN not in lines.getvalue()
