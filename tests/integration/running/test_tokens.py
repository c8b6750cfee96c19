"""Backends are opened by the token that their worker has for them now."""

import psutil
import pytest

from remuda.wire.nodes import NODE_SECRET
from remuda.worker.enrolment import WorkerPhase
from tests.integration.running.rig import NAME, TOKEN, Rig
from tests.integration.worker.rig import wait_for_phase
from tests.peers.backend_client import BackendClient, CallFailed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

OWN = {"http": "opens-its-http-server", "grpc": "opens-its-backends"}


async def opened_by(address: str, *tokens: str) -> list[str]:
    """Those of the tokens that the backend takes."""
    return [token for token in tokens if await _health(address, token) == "OK"]


async def _health(address: str, token: str) -> str:
    try:
        async with BackendClient(address, token) as client:
            return await client.health()
    except CallFailed as failed:
        return failed.code


async def logs_opened_by(rig: Rig, *tokens: str) -> list[str]:
    asked = {
        token: await rig.http.get("/v1/backend-logs", headers={"Authorization": f"Bearer {token}"})
        for token in tokens
    }
    return [token for token, reply in asked.items() if reply.status_code == 200]


async def test_backends_that_another_token_opens_are_started_anew(rig: Rig) -> None:
    """The frontend is LocalAI's at first, and is then replaced by ours, which gives the worker its own."""
    all_tokens = (TOKEN, OWN["grpc"], OWN["http"])
    reply = await rig.installed("echo", model_id="parrot")
    assert await opened_by(reply["address"], *all_tokens) == [TOKEN]
    assert await logs_opened_by(rig, *all_tokens) == [TOKEN]
    before = rig.process("parrot")

    identity = {"version": "1.0", "features": [NODE_SECRET]}
    rig.frontend.extra_reply |= {"remuda": identity, "worker_tokens": OWN}
    rig.frontend.forget(NAME)
    rig.worker.report_changed()  # It hears that it is not known, and registers again.
    await wait_until(lambda: not psutil.pid_exists(before.pid), what="the old process to be gone")

    await wait_for_phase(rig.worker, WorkerPhase.READY)
    again = await rig.installed("echo", model_id="parrot")
    assert await opened_by(again["address"], *all_tokens) == [OWN["grpc"]]
    assert await logs_opened_by(rig, *all_tokens) == [OWN["http"]]
