"""Backends as frontends meet them: they load, answer, are busy, crash, and are another than they were."""

from typing import TYPE_CHECKING

import anyio

from remuda.core.errors import BackendFailed, NodeUnreachable
from remuda.inference.answers import AnswerFormat, AnswerSink
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall, ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.scheduler.model import Place
from remuda.wire.models import ModelsRunningReply
from tests.sim.serving.workers import Process
from tests.sim.serving.world import ServingWorld

if TYPE_CHECKING:
    from tests.sim.serving.frontends import ServingFrontend

_PROBE_S = 0.02
_SLOW_S = 400.0  # Longer than a load may take here.


class SimulatedEngine:
    """Implements scheduler.ports.ReplicaEngine for one frontend."""

    def __init__(self, world: ServingWorld, host: "ServingFrontend") -> None:
        self._world = world
        self._host = host
        self._dice = host.dice.fork("engine")

    async def load(self, endpoint: ReplicaEndpoint, model: ModelConfig, place: Place) -> None:
        process = self._world.at(endpoint.address)
        if process is None:
            raise BackendFailed(f"{endpoint.address} refused the connection")
        self._world.serving_claims.begins_to_load(process, self._host.id)
        process.model = ""
        try:
            await self._read_model(process, endpoint)
            process.model, process.revision = model.id, model.revision
        finally:
            process.loaded_by = ""
            if not process.model:
                process.memory_bytes = 0
        self._world.serving_claims.requests.ready(process, model.id)
        process.worker.changed()

    async def _read_model(self, process: Process, endpoint: ReplicaEndpoint) -> None:
        slow = self._world.weather.work_fails and self._dice.chance(0.05)
        if slow:
            self._fails("slow_load", process)
        if not await _lasts(process, _SLOW_S if slow else self._dice.between(0.5, 15.0)):
            raise BackendFailed(f"{endpoint.address} ended while it was loading")
        if self._dice.chance(self._world.weather.work_fails):
            self._fails("load_failed", process)
            raise BackendFailed("unknown model architecture")

    def _fails(self, fault: str, process: Process) -> None:
        self._world.trace.fault(fault, process)
        self._world.serving_claims.failures[process.key.model] += 1

    async def healthy(self, endpoint: ReplicaEndpoint) -> bool | None:
        await anyio.sleep(_PROBE_S)
        process = self._world.at(endpoint.address)
        if process is None:
            return False
        return None if self._dice.chance(0.2) else True


class SimulatedWorkerHttp:
    """Implements scheduler.ports.WorkerHttp."""

    def __init__(self, world: ServingWorld) -> None:
        self._world = world

    async def running(self, server: ReplicaEndpoint) -> ModelsRunningReply | None:
        await anyio.sleep(_PROBE_S)
        machine = self._world.machine_of(server.address)
        if not machine.connected:
            raise NodeUnreachable(f"{server.address} does not answer")
        return machine.what_runs()

    async def answers(self, server: ReplicaEndpoint) -> bool:
        await anyio.sleep(_PROBE_S)
        return self._world.machine_of(server.address).connected


class SimulatedUpstreams:
    """Implements inference.model.Upstreams for one life of a frontend."""

    def __init__(self, world: ServingWorld, host: "ServingFrontend") -> None:
        self._world = world
        self._host = host

    def at(self, endpoint: ReplicaEndpoint) -> "SimulatedUpstream":
        return SimulatedUpstream(self._world, self._host, endpoint)


class SimulatedUpstream:
    def __init__(self, world: ServingWorld, host: "ServingFrontend", endpoint: ReplicaEndpoint) -> None:
        self._world = world
        self._host = host
        self._address = endpoint.address

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        requests, model, answered = self._world.serving_claims.requests, call.model.id, False
        self._host.serving += 1
        try:
            requests.turns.seated(call.request_id)
            requests.sent(self._host, self._address, model)
            await self._answer(model, sink)
            answered = True
        finally:
            self._host.serving -= 1
            requests.ended(self._host, self._address, model, answered=answered)

    async def _answer(self, model: str, sink: AnswerSink) -> None:
        process = self._world.at(self._address)
        if process is None:
            raise UpstreamFailed(Fault.UNREACHABLE, "connection refused")
        if process.model != model:
            raise UpstreamFailed(Fault.NOT_LOADED, f"it has {process.model or 'no model'}")
        relay = sink.relay(AnswerFormat.OPENAI)
        assert relay is not None
        await relay.begin(200, b"application/json")
        if not await _lasts(process, self._host.dice.between(0.1, 6.0)):
            raise UpstreamFailed(Fault.BROKE, "the connection was lost")


async def _lasts(process: Process, span_s: float) -> bool:
    """Whether the process lives for so long."""
    with anyio.move_on_after(span_s):
        await process.ended.wait()
    return not process.ended.is_set()
