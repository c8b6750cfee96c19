"""The storm: faults and admins, one after the other, as the dice fall."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import anyio

from remuda.core.ids import NodeId
from remuda.fleet.registry import Registry
from remuda.wire.nodes import SECRET_PREFIX
from tests.sim.fleet import SimulatedFleet
from tests.sim.frontends import FrontendHost
from tests.sim.machines import Machine
from tests.sim.world import World

EVENTS_LEAST = 200
FAULTS_LEAST = 10
_ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Command:
    """An admin's word: what the history will call it, and how it is said to a frontend."""

    event: str
    value: str
    say: Callable[[Registry, NodeId], Awaitable[object]]


def _commands(number: int) -> dict[Command, float]:
    key, value = f"zone-{number % 3}", f"z{number}"
    budget, count = f"{10 + number % 80}%", 1 + number % 5
    return {
        Command("approved", "", lambda to, node: to.approve(node, _ADMIN)): 8.0,
        Command("drained", "", lambda to, node: to.drain(node, _ADMIN)): 2.0,
        Command("resumed", "", lambda to, node: to.resume(node, _ADMIN)): 1.0,
        Command("removed", "", lambda to, node: to.remove(node, _ADMIN)): 1.5,
        Command(
            "labelled",
            f"{key}={value}",
            lambda to, node: to.set_labels(node, {key: value}, _ADMIN, keep_others=True),
        ): 2.0,
        Command("unlabelled", key, lambda to, node: to.remove_label(node, key, _ADMIN)): 0.5,
        Command("vram_budget_set", budget, lambda to, node: to.set_budget(node, budget, _ADMIN)): 1.0,
        Command("vram_budget_set", "None", lambda to, node: to.set_budget(node, None, _ADMIN)): 0.3,
        Command(
            "max_replicas_set", str(count), lambda to, node: to.set_max_replicas(node, count, _ADMIN)
        ): 1.0,
    }


class Storm:
    def __init__(self, world: World, fleet: SimulatedFleet) -> None:
        self._world = world
        self._fleet = fleet
        self._dice = world.dice.fork("storm")
        self._commands_given = 0
        self._clock_set_at_s = -60.0
        self._over = False
        self._undo: list[Callable[[], None]] = []
        self._kinds: dict[Callable[[], None], float] = {
            self._give_command: 10.0,
            self._kill_worker: 3.0,
            self._stop_worker: 2.0,
            self._start_worker: 6.0,
            self._isolate_worker: 3.0,
            self._set_worker_clock: 1.0,
            self._move_worker: 1.0,
            self._impersonate: 3.0,
            self._kill_frontend: 2.0,
            self._cut_store: 1.0,
            self._cut_bus: 1.0,
            self._take_store_away: 1.5,
            self._slow_store_down: 1.0,
            self._take_bus_away: 1.5,
            self._set_database_clock: 2.0,
        }

    async def run(self) -> None:
        """Returns when everything is repaired again, and every machine that is to live, lives."""
        trace = self._world.trace
        await self._welcome()
        deeds = self._dice.whole(18, 26)
        while deeds > 0 or len(trace.lines) < EVENTS_LEAST or trace.fault_count < FAULTS_LEAST:
            deeds -= 1
            await anyio.sleep(self._dice.between(0.5, 8.0))
            self._dice.weighted(self._kinds)()
            self._world.note_hearing()
            if deeds % 3 == 0 and self._fleet.up:
                self._fleet.verdicts()
        self._over = True
        for undo in self._undo:
            undo()
        self._world.note_hearing()
        trace.event("calm")

    # Admins.

    async def _welcome(self) -> None:
        """An admin who is there from the start, or not."""
        await anyio.sleep(self._dice.between(1.0, 8.0))
        if self._dice.chance(0.7) and (up := self._fleet.up):
            approve = Command("approved", "", lambda to, node: to.approve(node, _ADMIN))
            for node in self._world.changes.state.waiting:
                self._command(self._dice.pick(up), approve, node)

    def _give_command(self) -> None:
        nodes, frontends = list(self._world.changes.state.nodes.values()), self._fleet.up
        if not nodes or not frontends:
            return
        self._commands_given += 1
        command = self._dice.weighted(_commands(self._commands_given))
        waiting = self._world.changes.state.waiting
        ids = waiting if command.event == "approved" and waiting else [row.id for row in nodes]
        self._command(self._dice.pick(frontends), command, self._dice.pick(ids))

    def _command(self, frontend: FrontendHost, command: Command, node: NodeId) -> None:
        self._world.ledger.intend(command.event, node, command.value)
        self._world.trace.event("admin", frontend.id, command.event, command.value, node)
        frontend.command(lambda registry: command.say(registry, node))

    # Workers.

    def _running(self) -> list[Machine]:
        return [machine for machine in self._fleet.machines if machine.life is not None]

    def _kill_worker(self) -> None:
        if running := self._running():
            victim = self._dice.pick(running)
            self._world.trace.fault("worker_killed", victim)
            victim.crash()
            if self._dice.chance(0.6):
                self._later(self._dice.between(0.2, 40.0), lambda: self._start(victim))

    def _stop_worker(self) -> None:
        if running := self._running():
            machine = self._dice.pick(running)
            self._world.trace.event("told to stop", machine)
            assert machine.life is not None, "it is one of those that run"
            machine.life.stop()
            if self._dice.chance(0.6):
                self._later(self._dice.between(0.2, 15.0), lambda: self._start(machine))

    def _start_worker(self) -> None:
        if idle := [machine for machine in self._fleet.machines if machine.life is None]:
            self._start(self._dice.pick(idle))

    def _start(self, machine: Machine) -> None:
        if machine.life is None:
            machine.start()

    def _isolate_worker(self) -> None:
        machine = self._dice.pick(self._fleet.machines)
        self._world.trace.fault("worker_isolated", machine)
        machine.isolate()
        self._for_a_while(self._dice.between(2.0, 70.0), machine.rejoin)

    def _set_worker_clock(self) -> None:
        machine = self._dice.pick(self._fleet.machines)
        machine.clock.error += timedelta(
            seconds=self._dice.pick((-86400.0, -3600.0, -40.0, 40.0, 3600.0, 86400.0))
        )
        self._world.trace.fault("worker_clock_set", machine, machine.clock.error)

    def _move_worker(self) -> None:
        machine = self._dice.pick(self._fleet.machines)
        machine.move()
        self._world.trace.fault("worker_moved", machine, machine.host)

    def _impersonate(self) -> None:
        """Somebody else registers under a node's name, in one way or another, and speaks as it."""
        if not (rows := list(self._world.changes.state.nodes.values())):
            return
        victim = self._dice.pick(rows)
        host = self._dice.pick([machine.host for machine in self._fleet.machines])
        machine_id = self._dice.pick(("", victim.machine_id, "machine-of-impostor"))
        secret = self._dice.pick(("", SECRET_PREFIX + "6" * 40))
        self._world.trace.fault("impersonated", victim.name, machine_id, bool(secret))
        start, impostor = self._world.tasks.start_soon, self._fleet.impostor
        start(impostor.register, victim.name, machine_id, f"{host}:50051", secret)
        start(impostor.speak_as, victim.id)

    # Frontends.

    def _kill_frontend(self) -> None:
        if up := self._fleet.up:
            victim = self._dice.pick(up)
            self._world.trace.fault("frontend_killed", victim.id)
            victim.crash()

    def _cut_store(self) -> None:
        frontend = self._dice.pick(self._fleet.frontends)
        self._world.trace.fault("store_cut", frontend.id)
        frontend.store.cut = True
        self._for_a_while(self._dice.between(1.0, 40.0), lambda: setattr(frontend.store, "cut", False))

    def _cut_bus(self) -> None:
        frontend = self._dice.pick(self._fleet.frontends)
        self._world.trace.fault("bus_cut", frontend.id)

        def mend() -> None:
            frontend.bus_cut = False
            self._world.broker.mend(frontend.id)

        frontend.bus_cut = True
        self._world.broker.cut(frontend.id)
        self._for_a_while(self._dice.between(1.0, 40.0), mend)

    # What they share.

    def _take_store_away(self) -> None:
        self._world.trace.fault("store_away")
        self._world.store.away = True
        self._for_a_while(self._dice.between(1.0, 50.0), lambda: setattr(self._world.store, "away", False))

    def _slow_store_down(self) -> None:
        self._world.trace.fault("store_slow")
        self._world.store.slowness = self._dice.pick((100.0, 1000.0, 2500.0))
        self._for_a_while(self._dice.between(1.0, 20.0), lambda: setattr(self._world.store, "slowness", 1.0))

    def _take_bus_away(self) -> None:
        def back() -> None:
            self._world.bus_up = True
            self._world.broker.start()

        self._world.trace.fault("bus_away")
        self._world.bus_up = False
        self._world.broker.stop()
        self._for_a_while(self._dice.between(1.0, 50.0), back)

    def _set_database_clock(self) -> None:
        """Not twice within a minute: small steps cannot be told from slowness, and would add up."""
        now_s = anyio.current_time()
        if now_s - self._clock_set_at_s < 60.0:
            return
        self._clock_set_at_s = now_s
        # Credentials that live shorter than the step would be dead when they are made.
        far_back_s = -3600.0 if self._world.issuer.ttl > timedelta(hours=2) else -20.0
        by_s = self._dice.pick((far_back_s, -20.0, -5.0, 4.0, 9.0, 600.0))
        self._world.store.clock.error += timedelta(seconds=by_s)
        self._world.ledger.hearing.clock_stepped(by_s)
        self._world.trace.fault("database_clock_set", f"{by_s:+g}")

    # Later.

    def _for_a_while(self, span_s: float, undo: Callable[[], None]) -> None:
        self._undo.append(undo)
        self._later(span_s, undo)

    def _later(self, delay_s: float, deed: Callable[[], None]) -> None:
        async def later() -> None:
            await anyio.sleep(delay_s)
            if not self._over:
                deed()
                self._world.note_hearing()

        self._world.tasks.start_soon(later)
