"""The storm: what admins ask for and what goes wrong, one after the other, as the dice fall."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import anyio

from remuda.core.ids import NodeId
from remuda.ops.model import Goal, Kind, Operation, OpId, RollOut, Source, Step, Wish
from remuda.store.ops import SqlOpStore
from tests.sim.clocks import elapsed_s
from tests.sim.ops.frontends import FrontendHost
from tests.sim.ops.workers import SimulatedWorker, build_of
from tests.sim.ops.world import Weather, World

EVENTS_LEAST = 200
FAULTS_LEAST = 10


class Storm:
    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.dice.fork("storm")
        self._asked = 0
        self._over = False
        self._undo: list[Callable[[], None]] = []
        self._kinds: dict[Callable[[], None], float] = {
            self._ask: 10.0,
            self._ask_twice: 1.5,
            self._change_mind: 4.0,
            self._retry: 3.0,
            self._release: 2.0,
            self._kill_worker: 4.0,
            self._isolate_worker: 3.0,
            self._drain: 1.5,
            self._remove: 0.4,
            self._kill_frontend: 2.0,
            self._set_clock: 1.0,
            self._cut_store: 1.0,
            self._take_store_away: 0.7,
            self._take_bus_away: 1.0,
        }

    async def run(self) -> None:
        """Returns when everything is repaired that is to be."""
        trace = self._world.trace
        deeds = self._dice.whole(14, 22) - min(len(self._world.workers) // 2, 12)
        while deeds > 0 or len(trace.lines) < EVENTS_LEAST or trace.fault_count < FAULTS_LEAST:
            deeds -= 1
            await anyio.sleep(self._world.pace.gap_most_s ** self._dice.fraction())
            self._dice.weighted(self._kinds)()
            self._world.claims.look_at_everything()
        self._over = True
        for undo in self._undo:
            undo()
        self._world.weather = Weather()
        trace.event("calm")

    # What people want.

    def _command(self, work: Callable[[SqlOpStore], Awaitable[object]]) -> None:
        if up := self._world.up:
            self._dice.pick(up).command(work)

    def _ask(self) -> None:
        backend = self._dice.pick(list(self._world.releases.newest))
        kind = self._dice.weighted({Kind.INSTALL: 5.0, Kind.UPGRADE: 4.0, Kind.REMOVE: 2.0})
        if nodes := self._meant(kind, backend):
            self._command(partial(_submit, *self._wanted(kind, backend, nodes)))

    def _ask_twice(self) -> None:
        """Somebody whose answer was lost, and says the same again, to whichever frontend."""
        backend = self._dice.pick(list(self._world.releases.newest))
        if not (nodes := self._meant(Kind.INSTALL, backend)):
            return
        key = f"key-{self._asked}"
        for _ in range(2):
            self._command(partial(_submit, *self._wanted(Kind.INSTALL, backend, nodes, key)))

    def _meant(self, kind: Kind, backend: str) -> list[SimulatedWorker]:
        known = [one for one in self._world.workers.values() if self._world.roster.knows(one.node)]
        if kind is Kind.UPGRADE:
            known = [one for one in known if build_of(backend) in one.disk]
        some = self._dice.chance(0.5)
        return [one for one in known if not some or self._dice.chance(0.4)]

    def _wanted(
        self, kind: Kind, backend: str, nodes: list[SimulatedWorker], key: str = ""
    ) -> tuple[Operation, list[Step]]:
        self._asked += 1
        op, source, now = OpId(f"op-{self._asked}"), Source(backend, "[]"), self._world.store_clock.now()
        rolling = kind is Kind.UPGRADE and self._dice.chance(0.6)
        roll_out = RollOut(self._dice.pick((1, 3, 64)), canary=rolling, proves=rolling)
        digest = self._world.releases.newest[backend] if self._dice.chance(0.9) or rolling else ""
        expires = now + timedelta(seconds=self._world.pace.work_most_s) if self._dice.chance(0.1) else None
        operation = Operation(op, kind, source, roll_out, "admin", now, expires=expires, idempotency_key=key)
        goal = Goal((build_of(backend), backend), "" if kind is Kind.REMOVE else digest)
        steps = [
            Step(
                op,
                one.node,
                one.name,
                kind,
                source,
                goal,
                proves=rolling,
                rolls_back=one.reports,
                expires=expires,
            )
            for one in nodes
        ]
        return operation, steps

    def _change_mind(self) -> None:
        live = [row for row in self._world.claims.operations.values() if not row.finished]
        if live:
            row = self._dice.pick(live)
            wish = self._dice.weighted({Wish.CANCEL: 2.0, Wish.PAUSE: 2.0, Wish.RUN: 2.0})
            if row.wish is not Wish.CANCEL:
                self._wish(row.id, wish)

    def _wish(self, op: OpId, wish: Wish) -> None:
        self._command(lambda store: store.wish(op, wish))

    def _retry(self) -> None:
        over = [row.id for row in self._world.claims.operations.values() if row.finished]
        if not over:
            return
        op = self._dice.pick(over)
        nodes: list[NodeId] | None = None
        if self._dice.chance(0.4):
            nodes = [self._dice.pick([step.node for step in self._world.claims.of(op)])]
        self._world.claims.retried[op] = elapsed_s()
        self._world.trace.event("asked again", op, nodes or "all")
        self._command(lambda store: store.retry(op, nodes, "admin"))

    def _release(self) -> None:
        releases = self._world.releases
        backend = self._dice.pick(list(releases.newest))
        version = f"sha256:{backend}-{len(self._world.trace.lines)}"
        releases.newest[backend] = version
        if self._dice.chance(0.4):
            releases.broken.add(version)
        self._world.trace.event("released", version, "broken" if version in releases.broken else "")

    # What goes wrong with workers.

    def _away_s(self) -> float:
        return 1.0 + float(self._world.pace.away_most_s ** self._dice.fraction())

    def _kill_worker(self) -> None:
        if running := [one for one in self._world.workers.values() if one.life is not None]:
            victim = self._dice.pick(running)
            self._world.trace.fault("worker_killed", victim)
            victim.crash()
            victim.gone_for_good = self._dice.chance(0.1)
            if not victim.gone_for_good:
                self._for_a_while(self._away_s(), lambda: self._start(victim))

    def _start(self, worker: SimulatedWorker) -> None:
        if worker.life is None and worker.node in self._world.workers:
            worker.start()

    def _isolate_worker(self) -> None:
        if not self._world.workers:
            return
        worker = self._dice.pick(list(self._world.workers.values()))
        self._world.trace.fault("worker_isolated", worker)
        worker.isolated = True
        self._for_a_while(self._away_s(), worker.rejoin)

    def _drain(self) -> None:
        known = [node for node in self._world.workers if self._world.roster.knows(NodeId(node))]
        if known:
            node = NodeId(self._dice.pick(known))
            self._world.trace.event("drained", node)
            self._world.roster.drain(node, drained=True)
            if self._dice.chance(0.9):
                self._for_a_while(self._away_s(), lambda: self._end_drain(node))

    def _end_drain(self, node: NodeId) -> None:
        if self._world.roster.knows(node):
            self._world.trace.event("drain ended", node)
            self._world.roster.drain(node, drained=False)

    def _remove(self) -> None:
        known = [one for one in self._world.workers.values() if self._world.roster.knows(one.node)]
        if len(known) > 1:
            worker = self._dice.pick(known)
            self._world.trace.fault("node_removed", worker)
            if worker.life is not None:
                worker.crash()
            del self._world.workers[worker.node]
            self._world.roster.remove(worker.node)

    # What goes wrong with frontends, and with what they share.

    def _kill_frontend(self) -> None:
        if up := self._world.up:
            self._dice.pick(up).crash("at some moment")

    def _set_clock(self) -> None:
        frontend = self._dice.pick(self._world.frontends)
        frontend.clock.error += timedelta(seconds=self._dice.pick((-86400.0, -60.0, 60.0, 86400.0)))
        self._world.trace.fault("clock_set", frontend.id, frontend.clock.error)

    def _outage_s(self) -> float:
        return 1.0 + float((10 * self._world.pace.heartbeat_s) ** self._dice.fraction())

    def _cut_store(self) -> None:
        frontend: FrontendHost = self._dice.pick(self._world.frontends)
        self._world.trace.fault("store_cut", frontend.id)
        frontend.database.cut = True
        self._for_a_while(self._outage_s(), lambda: setattr(frontend.database, "cut", False))

    def _take_store_away(self) -> None:
        self._world.trace.fault("store_away")
        self._world.store_up = False
        self._for_a_while(self._outage_s(), lambda: setattr(self._world, "store_up", True))

    def _take_bus_away(self) -> None:
        self._world.trace.fault("bus_away")
        self._world.drop_bus()
        self._for_a_while(self._outage_s(), lambda: setattr(self._world, "bus_up", True))

    def _for_a_while(self, span_s: float, undo: Callable[[], None]) -> None:
        async def later() -> None:
            await anyio.sleep(span_s)
            if not self._over:
                undo()

        self._undo.append(undo)
        self._world.tasks.start_soon(later)


async def _submit(operation: Operation, steps: list[Step], store: SqlOpStore) -> object:
    return await store.submit(operation, steps)
