"""The storm: what admins ask for and what goes wrong, one after the other, as the dice fall."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial

from remuda.core.ids import NodeId
from remuda.ops.model import Goal, Kind, Operation, OpId, RollOut, Source, Step, Wish
from remuda.store.ops import SqlOpStore
from tests.sim.ops.claims import Claims
from tests.sim.ops.trouble import Deed, Trouble
from tests.sim.ops.workers import SimulatedWorker, build_of
from tests.sim.ops.world import World
from tests.support.clocks import elapsed_s


class Storm(Trouble):
    gone_for_good = 0.1

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._asked = 0

    def kinds(self) -> Mapping[Deed, float]:
        return {
            self._ask: 10.0,
            self._ask_twice: 1.5,
            self._change_mind: 4.0,
            self._retry: 3.0,
            self._release: 2.0,
            self.kill_worker: 4.0,
            self.isolate_worker: 3.0,
            self._drain: 1.5,
            self._remove: 0.4,
            self.kill_frontend: 2.0,
            self.set_clock: 1.0,
            self.cut_store: 1.0,
            self.take_store_away: 0.7,
            self.take_bus_away: 1.0,
        }

    async def run(self) -> None:
        await self.rage(self._dice.whole(14, 22) - min(len(self._world.workers) // 2, 12))

    # What people want.

    def _command(self, work: Callable[[SqlOpStore], Awaitable[object]]) -> None:
        if up := self._world.up:
            self._dice.pick(up).command(work)

    def _ask(self) -> None:
        backend = self._dice.pick(list(self._world.releases.newest))
        kind = self._dice.weighted({Kind.INSTALL: 5.0, Kind.UPGRADE: 4.0, Kind.REMOVE: 2.0})
        if nodes := self._meant(kind, backend):
            self._note_asked_again(kind, backend, {one.node for one in nodes})
            self._command(partial(_submit, *self._wanted(kind, backend, nodes)))

    def _note_asked_again(self, kind: Kind, backend: str, nodes: set[NodeId]) -> None:
        """The same wish joins what is under way, and what failed of that is begun afresh."""
        claims = self._world.claims
        claims.wished[kind, backend, frozenset(nodes)] += 1
        for row in claims.operations.values():
            same_nodes = {step.node for step in claims.of(row.id)} == nodes
            if (row.kind, row.backend) == (kind, backend) and same_nodes and not row.finished:
                claims.retried[row.id] = elapsed_s()

    def _ask_twice(self) -> None:
        """Somebody whose answer was lost, and says the same again, to whichever frontend."""
        backend = self._dice.pick(list(self._world.releases.newest))
        if not (nodes := self._meant(Kind.INSTALL, backend)):
            return
        key, claims = f"key-{self._asked}", self._world.claims
        self._note_asked_again(Kind.INSTALL, backend, {one.node for one in nodes})
        first = self._wanted(Kind.INSTALL, backend, nodes)
        if self._dice.chance(0.5):  # Then the wish with the key joins another.
            self._command(partial(_submit, *first))
        keyed = partial(_submit_keyed, claims, *self._once_more(*first, key))
        self._command(keyed)
        self._command(partial(_submit_keyed, claims, *self._once_more(*first, key)))
        self.for_a_while(self.away_s(), lambda: self._command(keyed))

    def _once_more(self, operation: Operation, steps: list[Step], key: str) -> tuple[Operation, list[Step]]:
        self._asked += 1
        op = OpId(f"op-{self._asked}")
        return replace(operation, id=op, idempotency_key=key), [replace(step, op=op) for step in steps]

    def _meant(self, kind: Kind, backend: str) -> list[SimulatedWorker]:
        known = [one for one in self._world.workers.values() if self._world.roster.knows(one.node)]
        if kind is Kind.UPGRADE:
            known = [one for one in known if build_of(backend) in one.disk]
        some = self._dice.chance(0.5)
        return [one for one in known if not some or self._dice.chance(0.4)]

    def _wanted(self, kind: Kind, backend: str, nodes: list[SimulatedWorker]) -> tuple[Operation, list[Step]]:
        self._asked += 1
        op, source, now = OpId(f"op-{self._asked}"), Source(backend, "[]"), self._world.store_clock.now()
        rolling = kind is Kind.UPGRADE and self._dice.chance(0.6)
        roll_out = RollOut(self._dice.pick((1, 3, 64)), canary=rolling, proves=rolling)
        digest = self._world.releases.newest[backend] if self._dice.chance(0.9) or rolling else ""
        expires = now + timedelta(seconds=self._world.pace.work_most_s) if self._dice.chance(0.1) else None
        operation = Operation(op, kind, source, roll_out, "admin", now, expires=expires)
        goal = Goal((build_of(backend), backend), "" if kind is Kind.REMOVE else digest)
        steps = [
            Step(
                op,
                one.node,
                one.name,
                kind,
                source,
                goal,
                proves=rolling or (one.reports and kind is Kind.UPGRADE),
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
        """Of what is over, and of what is under way: some of that waits for its next attempt."""
        known = [row.id for row in self._world.claims.operations.values()]
        if not known:
            return
        op = self._dice.pick(known)
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

    # What becomes of nodes.

    def _drain(self) -> None:
        known = [node for node in self._world.workers if self._world.roster.knows(NodeId(node))]
        if known:
            node = NodeId(self._dice.pick(known))
            self._world.trace.event("drained", node)
            self._world.roster.drain(node, drained=True)
            if self._dice.chance(0.9):
                self.for_a_while(self.away_s(), lambda: self._end_drain(node))

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


async def _submit_keyed(claims: Claims, operation: Operation, steps: list[Step], store: SqlOpStore) -> None:
    submitted = await store.submit(operation, steps)
    claims.keyed(operation.idempotency_key, submitted.operation.id)


async def _submit(operation: Operation, steps: list[Step], store: SqlOpStore) -> object:
    return await store.submit(operation, steps)
