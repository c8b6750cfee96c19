"""A supervisor on a scripted machine and a clock that jumps: hours of processes in milliseconds."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from remuda.core.entropy import SeededEntropy
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import Launch, PortBook, Protocol, Recipe
from remuda.worker.processes.supervisor import Supervisor
from tests.support.clocks import HostClock
from tests.support.scripted_machine import Script, ScriptedMachine
from tests.support.virtual_loop import run_virtually

FIRST_PORT = 50051


@dataclass(frozen=True, slots=True)
class Rig:
    supervisor: Supervisor
    machine: ScriptedMachine
    ports: PortBook
    changes: list[float]


def launch(
    model: str = "m",
    replica: int = 0,
    backend: str = "echo",
    options: str = "",
    protocol: Protocol = Protocol.GRPC,
) -> Launch:
    folder = Path("/backends") / backend
    argv = ("run.sh", *([options] if options else []), "--addr", "0.0.0.0:{port}")
    recipe = Recipe(argv, folder, {}, protocol)
    return Launch(ProcessKey(model, replica), backend, frozenset({backend}), folder, recipe)


def supervised(
    scene: Callable[[Rig], Awaitable[None]],
    script_for: Callable[[ProcessKey], Script] = lambda _key: Script(),
    ports_count: int = 20,
) -> Rig:
    """Play the scene; afterwards the supervisor has been cancelled, and whatever it ran must be gone."""
    rigs: list[Rig] = []

    async def main() -> None:
        machine, ports = ScriptedMachine(script_for), PortBook(FIRST_PORT, FIRST_PORT + ports_count - 1)
        changes: list[float] = []
        supervisor = Supervisor(
            machine,
            machine,
            ports,
            clock=HostClock(),
            entropy=SeededEntropy(1),
            changed=lambda: changes.append(anyio.current_time()),
        )
        rig = Rig(supervisor, machine, ports, changes)
        rigs.append(rig)
        async with anyio.create_task_group() as tasks:
            await tasks.start(supervisor.run)
            await scene(rig)
            tasks.cancel_scope.cancel()

    run_virtually(main)
    [rig] = rigs
    assert rig.supervisor.replicas() == []
    return rig


def scripts(*in_order: Script) -> Callable[[ProcessKey], Script]:
    """Each process takes the next; the last one serves for all that follow."""
    left = list(in_order)
    return lambda _key: left.pop(0) if len(left) > 1 else left[0]
