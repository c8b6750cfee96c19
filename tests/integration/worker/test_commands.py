"""Commands as a frontend gives them: by subject, over a real bus, to a whole worker."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from remuda.bus.auth import anonymous
from remuda.bus.client import Bus
from remuda.bus.messages import Incoming
from remuda.core.ids import NodeId
from remuda.wire import subjects
from remuda.worker.enrolment import WorkerPhase
from tests.integration.worker.rig import NAME, ready, running, wait_for_phase
from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.commands_rig import Rig, rigged
from tests.support.nats_servers import PlainServer, make_bus, plain_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SOON = timedelta(seconds=10)
Subject = Callable[[NodeId], str]


@dataclass(frozen=True, slots=True)
class Commanded:
    """A worker at work, and a frontend's bus."""

    rig: Rig
    bus: Bus
    node: NodeId

    async def ask(self, subject: Subject, document: object) -> Any:
        return await self.say(subject, json.dumps(document).encode())

    async def say(self, subject: Subject, payload: bytes) -> Any:
        return json.loads(await self.bus.request(subject(self.node), payload, SOON))


@asynccontextmanager
async def commanded(root: Path, frontend: LocalAiFrontend, nats: PlainServer) -> AsyncIterator[Commanded]:
    bus = make_bus(nats.url, anonymous)
    async with rigged(root) as rig, anyio.create_task_group() as tasks:
        await tasks.start(bus.run)
        await bus.wait_connected()
        async with ready(frontend, listener=rig.commands, reports=rig.commands) as worker:
            rig.on_change = worker.report_changed
            yield Commanded(rig, bus, NodeId(frontend.node(NAME).id))
        tasks.cancel_scope.cancel()


@pytest.fixture
async def worker(tmp_path: Path, frontend: LocalAiFrontend, nats: PlainServer) -> AsyncIterator[Commanded]:
    async with commanded(tmp_path / "worker", frontend, nats) as made:
        yield made


FAILURES: dict[Subject, dict[str, object]] = {
    subjects.backend_install: {"success": False},
    subjects.backend_upgrade: {"success": False},
    subjects.backend_delete: {"success": False},
    subjects.backend_rollback: {"success": False},
    subjects.backend_cancel: {"success": False, "cancelled": False},
    subjects.backend_list: {"backends": []},
    subjects.model_unload: {"success": False},
    subjects.model_stop: {"matched": False, "freed": False, "terminated": False, "process_key": ""},
    subjects.models_running: {"models": []},
}


async def test_bad_json_on_every_subject_is_answered_in_its_own_shape(worker: Commanded) -> None:
    """Row A147."""
    for subject, shape in FAILURES.items():
        reply = await worker.say(subject, b"x")
        assert reply.pop("error").startswith("invalid request: "), subject
        assert reply == shape

    assert await worker.say(subjects.model_delete, b"x") == {"success": False, "error": "invalid request"}


async def test_ready_worker_answers_on_every_subject(worker: Commanded) -> None:
    for subject in (*FAILURES, subjects.model_delete):
        assert await worker.say(subject, b"x")


async def test_install_list_stop_and_delete_by_documents_of_the_contract(worker: Commanded) -> None:
    worker.rig.offer("echo")
    installed = await worker.ask(
        subjects.backend_install, {"backend": "echo", "model_id": "qwen", "replica_index": 1}
    )
    running = await worker.ask(subjects.models_running, {})
    listed = await worker.ask(subjects.backend_list, {})
    stopped = await worker.ask(
        subjects.model_stop,
        {"model_name": "qwen", "process_key": "qwen#1", "expected_address": installed["address"]},
    )
    deleted = await worker.ask(subjects.backend_delete, {"backend": "echo"})

    assert installed["success"]
    assert running["models"][0]["model_id"] == "qwen"
    assert running["models"][0]["replica_index"] == 1
    assert [row["name"] for row in listed["backends"]] == ["echo"]
    assert (stopped["matched"], stopped["freed"], stopped["terminated"]) == (True, True, True)
    assert deleted == {"success": True, "reports_stopped_processes": True}


async def test_backend_stop_is_heard_and_not_answered(worker: Commanded) -> None:
    worker.rig.live("a#0", "echo")
    await worker.bus.publish(subjects.backend_stop(worker.node), b"x")
    await worker.bus.publish(subjects.backend_stop(worker.node), b"null")

    await wait_until(lambda: not worker.rig.supervision.table)
    assert [free for _, free in worker.rig.supervision.stopped] == [True]


async def test_slow_install_delays_nothing_else_on_the_same_worker(worker: Commanded) -> None:
    """Row A146."""
    worker.rig.offer("slow", "quick")
    worker.rig.depot.gates["slow"] = anyio.Event()
    replies: list[Any] = []

    async def install_slow() -> None:
        replies.append(await worker.ask(subjects.backend_install, {"backend": "slow"}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install_slow)
        await worker.rig.depot.reached["slow"].wait()
        with anyio.fail_after(5):
            quick = await worker.ask(subjects.backend_install, {"backend": "quick"})
            await worker.ask(subjects.backend_list, {})
            await worker.ask(subjects.models_running, {})
        assert replies == []
        worker.rig.depot.gates["slow"].set()

    assert quick["success"]
    assert replies[0]["success"]


async def test_progress_reaches_who_subscribed_before_asking(worker: Commanded) -> None:
    worker.rig.offer("echo")
    heard: list[Any] = []

    async def hear(message: Incoming) -> None:
        heard.append(json.loads(message.payload))

    await worker.bus.subscribe(subjects.install_progress(worker.node, "o-1"), hear)
    await worker.ask(subjects.backend_install, {"backend": "echo", "op_id": "o-1"})
    await wait_until(lambda: heard and heard[-1].get("phase") == "starting")

    assert {event["node_id"] for event in heard} == {worker.node}
    assert heard[-1]["percentage"] == 100


async def test_what_changed_is_reported_at_once(worker: Commanded, frontend: LocalAiFrontend) -> None:
    worker.rig.offer("echo")
    await worker.ask(subjects.backend_install, {"backend": "echo", "model_id": "m", "op_id": "o-1"})

    def told() -> Any:
        report: Any = frontend.node(NAME).heartbeats[-1]["report"]
        return report if report["installed"] and report["replicas"] and not report["work"] else None

    report = await wait_until(told)
    assert [one["name"] for one in report["installed"]] == ["echo"]
    assert report["replicas"][0]["state"] == "ready"
    assert report["replicas"][0]["instance"]


async def test_worker_that_cannot_hear_one_of_its_subjects_is_not_ready(tmp_path: Path) -> None:
    deaf = {"user": "w", "password": "p", "permissions": {"subscribe": {"deny": ["nodes.*.models.running"]}}}
    settings = {"authorization": {"users": [deaf]}, "no_auth_user": "w"}
    async with (
        plain_server(tmp_path, settings) as nats,
        LocalAiFrontend() as frontend,
        rigged(tmp_path / "worker") as rig,
    ):
        frontend.extra_reply = {"nats_url": nats.url}
        async with running(frontend.url, listener=rig.commands) as worker:
            state = await wait_for_phase(worker, WorkerPhase.CONNECTING, because="models.running")

    assert "refuses" in state.reason
    assert frontend.of("heartbeat") == []
