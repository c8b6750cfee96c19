"""However a worker is told to stop, it takes the same orderly way out."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import anyio
import httpx
import pytest
from anyio.abc import TaskGroup, TaskStatus

from remuda.core import limits
from remuda.wire import subjects
from remuda.worker.backend_runtime import BackendRuntime
from remuda.worker.bus_session import NoListener
from remuda.worker.enrolment import WorkerPhase
from remuda.worker.http.app import probes
from remuda.worker.http.server import App
from remuda.worker.reporter import NothingYet
from remuda.worker.service import Worker
from tests.integration.worker.rig import NAME, OFTEN, make_worker, wait_for_phase
from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.nats_servers import PlainServer, connected
from tests.support.plain_http import PLAIN
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

FAREWELL = ["drain", "models", "deregister"]
Trigger = Callable[[Worker, TaskGroup, PlainServer], Awaitable[None]]


async def by_call(worker: Worker, tasks: TaskGroup, nats: PlainServer) -> None:
    worker.stop("SIGTERM")


async def by_bus(worker: Worker, tasks: TaskGroup, nats: PlainServer) -> None:
    node = worker.state.value.node_id
    assert node is not None
    async with connected(nats.url) as bus:
        await bus.publish(subjects.node_stop(node), b"null")
        await wait_for_phase(worker, WorkerPhase.STOPPING)


async def by_cancelling(worker: Worker, tasks: TaskGroup, nats: PlainServer) -> None:
    tasks.cancel_scope.cancel()


async def by_all_of_them(worker: Worker, tasks: TaskGroup, nats: PlainServer) -> None:
    await by_bus(worker, tasks, nats)
    await by_call(worker, tasks, nats)
    await by_cancelling(worker, tasks, nats)


async def stopped(
    frontend: LocalAiFrontend, trigger: Callable[[Worker, TaskGroup], Awaitable[None]]
) -> list[str]:
    """The calls from the stop on, of a worker that sends heartbeats all the time."""
    worker = make_worker(frontend.url, heartbeat_interval=OFTEN)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await tasks.start(worker.run)
            await wait_for_phase(worker, WorkerPhase.READY)
            await wait_until(lambda: len(frontend.of("heartbeat")) > 1)
            await trigger(worker, tasks)
    return frontend.actions[frontend.actions.index("drain") :] if frontend.of("drain") else []


@pytest.mark.parametrize("trigger", [by_call, by_bus, by_cancelling, by_all_of_them])
async def test_every_way_to_stop_is_the_same_and_happens_once(
    frontend: LocalAiFrontend, nats: PlainServer, trigger: Trigger
) -> None:
    calls = await stopped(frontend, lambda worker, tasks: trigger(worker, tasks, nats))
    assert calls == FAREWELL
    assert frontend.node(NAME).status == "offline"


async def test_requests_in_flight_are_waited_for(frontend: LocalAiFrontend) -> None:
    async def busy_then_stop(worker: Worker, tasks: TaskGroup) -> None:
        frontend.node(NAME).in_flight_polls = [2, 0]
        worker.stop("SIGTERM")

    assert await stopped(frontend, busy_then_stop) == ["drain", "models", "models", "deregister"]


async def test_a_node_that_cannot_be_drained_still_says_goodbye(frontend: LocalAiFrontend) -> None:
    async def forget_then_stop(worker: Worker, tasks: TaskGroup) -> None:
        worker.stop("SIGTERM")
        frontend.forget(NAME)  # LocalAI answers 500 from here on.

    assert await stopped(frontend, forget_then_stop) == ["drain", "deregister"]


async def test_a_frontend_that_does_not_answer_does_not_hold_the_stop(
    frontend: LocalAiFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEAVE_CALL_S", 0.2)

    async def hang_then_stop(worker: Worker, tasks: TaskGroup) -> None:
        frontend.misbehaviour |= {"drain": "hang", "deregister": "hang"}
        worker.stop("SIGTERM")

    assert await stopped(frontend, hang_then_stop) == ["drain", "deregister"]


async def test_the_http_server_is_the_last_to_go(frontend: LocalAiFrontend) -> None:
    answers: list[int] = []

    async def ask_while_it_waits(worker: Worker, tasks: TaskGroup) -> None:
        frontend.node(NAME).in_flight_polls = [1, 0]
        worker.stop("SIGTERM")
        await wait_until(lambda: frontend.of("models"))
        answers.append(await healthz(frontend))

    await stopped(frontend, ask_while_it_waits)
    assert answers == [200]


class Backends:
    """Stands where a worker's backends are, and notes what the frontend was told before they were ended."""

    def __init__(self, frontend: LocalAiFrontend) -> None:
        self._frontend = frontend
        self.told_before_the_end: list[str] = []

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        await anyio.sleep_forever()

    @asynccontextmanager
    async def pages(self, why_unready: Callable[[], str]) -> AsyncIterator[App]:
        yield probes(why_unready)

    async def close(self) -> None:
        self.told_before_the_end = [
            action for action in self._frontend.actions if action in ("drain", "models", "deregister")
        ]


async def test_backends_end_after_the_requests_that_are_in_flight(frontend: LocalAiFrontend) -> None:
    backends = Backends(frontend)
    room = cast(BackendRuntime, backends)
    worker = make_worker(frontend.url, reports=NothingYet(), listener=NoListener(), make_room=lambda _: room)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await tasks.start(worker.run)
            await wait_for_phase(worker, WorkerPhase.READY)
            frontend.node(NAME).in_flight_polls = [1, 0]
            worker.stop("SIGTERM")

    assert backends.told_before_the_end == ["drain", "models", "models", "deregister"]


async def healthz(frontend: LocalAiFrontend) -> int:
    async with httpx.AsyncClient(trust_env=False, verify=PLAIN) as client:
        answer = await client.get(f"http://{frontend.of('register')[0].body['http_address']}/healthz")
    return answer.status_code


async def test_a_worker_that_never_got_in_stops_without_a_word(frontend: LocalAiFrontend) -> None:
    frontend.misbehaviour["register"] = 500
    worker = make_worker(frontend.url)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            await tasks.start(worker.run)
            await wait_for_phase(worker, WorkerPhase.REGISTERING, because="500")
            worker.stop("SIGTERM")
    assert set(frontend.actions) == {"register"}
