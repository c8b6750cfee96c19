"""A whole worker with real sockets and a real bus, driven by a frontend that is not ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
from anyio.abc import TaskStatus
from pydantic import SecretStr

from remuda.bus.auth import Anonymous, Login, UserJwt
from remuda.bus.client import DEFAULT_TIMEOUTS, Bus, BusTimeouts
from remuda.bus.messages import Connected, Down
from remuda.core.bus_reach import UnreachedBus
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.ids import BootId, MachineId
from remuda.worker.addresses import AddressSettings
from remuda.worker.enrolment import WorkerPhase, WorkerState
from remuda.worker.hardware.model import Hardware
from remuda.worker.identity import Introduction
from remuda.worker.ports import BusHandlers, BusTarget, Hear, OpenBus, ReportSource, WorkerBus
from remuda.worker.service import MakeRoom, Worker, WorkerConfig
from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.hardware import machine
from tests.support.nats_servers import make_bus

NAME = "gpu-1"
SELDOM = timedelta(hours=1)  # Heartbeats that come only for a reason.
OFTEN = timedelta(milliseconds=100)


class Impatient(SystemEntropy):
    """Jitter at its most: every wait is as short as it can be."""

    def fraction(self) -> float:
        return 0.999


class FixedHardware:
    async def current(self) -> Hardware:
        return machine()


class RealBus:
    """The NATS bus in the shape a worker wants."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @property
    def trouble(self) -> str:
        match self._bus.state:
            case Connected():
                return ""
            case Down(reason):
                return reason
            case _:
                return "not connected yet"

    @property
    def unreached(self) -> UnreachedBus | None:
        state = self._bus.state
        return state.unreached if isinstance(state, Down) else None

    @property
    def changed(self) -> anyio.Event:
        return self._bus.changed

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self._bus.run(task_status=task_status)

    async def subscribe(self, subject: str, hear: Hear) -> None:
        await self._bus.subscribe(subject, hear, concurrent=True)

    async def publish(self, subject: str, payload: bytes) -> None:
        await self._bus.publish(subject, payload)

    def rotate(self) -> None:
        self._bus.rotate()


def opening_bus(timeouts: BusTimeouts) -> OpenBus:
    def open_bus(target: BusTarget) -> WorkerBus:
        def login() -> Login:
            held = target.credentials()
            return Anonymous() if held is None else UserJwt(held.jwt, SecretStr(held.seed))

        return RealBus(make_bus(target.url, login, timeouts=timeouts))

    return open_bus


def make_worker(
    frontend_url: str,
    timeouts: BusTimeouts = DEFAULT_TIMEOUTS,
    *,
    listener: BusHandlers | None = None,
    reports: ReportSource | None = None,
    make_room: MakeRoom | None = None,
    **changes: Any,
) -> Worker:
    """`changes` are fields of WorkerConfig."""
    introduction = Introduction(
        name=NAME, machine_id=MachineId("machine-1"), boot_id=BootId("boot-1"), version="0.1.0"
    )
    config = WorkerConfig(
        frontend_url=frontend_url,
        token=None,
        introduction=introduction,
        heartbeat_interval=SELDOM,
        addresses=AddressSettings(),
    )
    return Worker(
        replace(config, **changes),
        opening_bus(timeouts),
        FixedHardware(),
        clock=SystemClock(),
        entropy=Impatient(),
        reports=reports,
        listener=listener,
        make_room=make_room,
    )


@asynccontextmanager
async def running(
    frontend_url: str, timeouts: BusTimeouts = DEFAULT_TIMEOUTS, **changes: Any
) -> AsyncIterator[Worker]:
    """A worker that runs when the block begins and has stopped in good order when it ends."""
    worker = make_worker(frontend_url, timeouts, **changes)
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        yield worker
        worker.stop("the test is over")


@asynccontextmanager
async def ready(frontend: LocalAiFrontend, **changes: Any) -> AsyncIterator[Worker]:
    async with running(frontend.url, **changes) as worker:
        await wait_for_phase(worker, WorkerPhase.READY)
        yield worker


async def wait_for_phase(worker: Worker, phase: WorkerPhase, *, because: str = "") -> WorkerState:
    with anyio.fail_after(20):
        return await worker.state.until(lambda state: state.phase is phase and because in state.reason)
