"""The stand-ins agree with each other: a LocalAI-like worker joins a LocalAI-like frontend."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import nats as nats_client
import pytest
from nats.aio.msg import Msg

from tests.peers.localai_frontend import LocalAiFrontend
from tests.peers.localai_worker import LocalAiWorker, WorkerOptions
from tests.support.nats_servers import PlainServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]


async def test_it_registers_answers_and_leaves(nats: PlainServer) -> None:
    async with LocalAiFrontend(token="s3cret") as frontend, anyio.create_task_group() as tasks:
        options = WorkerOptions(frontend.url, nats.url, "go-1", token="s3cret", heartbeat_s=0.05)
        worker = LocalAiWorker(options)
        await tasks.start(worker.run)
        bus = await nats_client.connect(nats.url)
        backends = await bus.request(f"nodes.{worker.id}.backend.list", b"{}", timeout=5)
        running = await bus.request(f"nodes.{worker.id}.models.running", b"{}", timeout=5)
        await wait_until(lambda: frontend.of("heartbeat"))
        await bus.publish(f"nodes.{worker.id}.stop", b"null")
        await wait_until(lambda: frontend.of("deregister"))
        await bus.close()
    assert (json.loads(backends.data), json.loads(running.data)) == ({"backends": None}, {"models": []})
    assert "report" not in frontend.node("go-1").heartbeats[0]
    assert frontend.actions[-3:] == ["drain", "models", "deregister"]


async def test_an_install_tells_its_progress_and_then_its_end(nats: PlainServer) -> None:
    events: list[object] = []

    async def progress(message: Msg) -> None:
        events.append(json.loads(message.data)["percentage"])

    async with LocalAiFrontend() as frontend, anyio.create_task_group() as tasks:
        worker = LocalAiWorker(WorkerOptions(frontend.url, nats.url, "go-1"))
        await tasks.start(worker.run)
        bus = await nats_client.connect(nats.url)
        await bus.subscribe(f"nodes.{worker.id}.backend.install.op-1.progress", cb=progress)
        request = json.dumps({"backend": "llama-cpp", "op_id": "op-1"}).encode()
        reply = await bus.request(f"nodes.{worker.id}.backend.install", request, timeout=5)
        await wait_until(lambda: len(events) == 2)
        await bus.close()
        worker.stop()
    assert json.loads(reply.data) == {"success": True, "address": "127.0.0.1:50051"}
    assert events == [0, 50]
    assert worker.received == [("backend.install", json.loads(request))]


async def test_it_runs_as_a_program_that_stops_in_order(nats: PlainServer) -> None:
    async with LocalAiFrontend(token="s3cret") as frontend:
        argv = [sys.executable, "-m", "tests.peers.localai_worker", "--name", "go-1"]
        argv += ["--register-to", frontend.url, "--nats-url", nats.url]
        environment = {**os.environ, "LOCALAI_REGISTRATION_TOKEN": "s3cret"}
        with anyio.fail_after(30):
            async with await anyio.open_process(
                argv, stdout=subprocess.PIPE, stderr=None, cwd=ROOT, env=environment
            ) as process:
                assert process.stdout is not None
                assert (await process.stdout.receive()).startswith(b"ready ")
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
    assert frontend.actions == ["register", "drain", "models", "deregister"]
