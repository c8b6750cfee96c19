"""What must hold of operations, whatever happens. Looked at after every transaction, every request that is
sent and everything that a worker begins; apart from the code that is watched."""

import math
from collections import Counter
from collections.abc import Iterable

from remuda.core.ids import NodeId
from remuda.ops.model import Kind, OpId, Stage, State
from remuda.ops.progress import LiveProgress
from tests.sim.ops.workers import InHand, Life, SimulatedWorker, build_of
from tests.sim.ops.world import World
from tests.support.clocks import elapsed_s
from tests.support.op_tables import OperationRow, StepRow

Key = tuple[OpId, NodeId]
_AT_WORK = (State.RUNNING, State.STOPPING)
_PASS_TRIPS = 4  # To the database, from looking at the fleet to having written what is begun.
_COMMANDS = ("backend.install", "backend.upgrade", "backend.delete", "backend.rollback")


class Claims:
    def __init__(self, world: World) -> None:
        self._world = world
        self.operations: dict[OpId, OperationRow] = {}
        self.steps: dict[Key, StepRow] = {}
        self.retried: dict[OpId, float] = {}  # When a person asked for it again, last.
        self.wished: Counter[tuple[Kind, str, frozenset[NodeId]]] = Counter()
        self._change = 0
        self._sent: set[tuple[NodeId, str, bytes]] = set()
        # What a node had when each attempt at its upgrade began: a tag may move between two of them.
        self._before: dict[Key, list[str]] = {}
        self._begun_s: dict[tuple[OpId, NodeId, int], float] = {}  # When an attempt was written to begin.
        self._progress: dict[tuple[OpId, NodeId, int], float] = {}
        self._keyed: dict[str, OpId] = {}
        self._listed_s: dict[tuple[OpId, NodeId, int], float] = {}  # Since when what is wanted is there.
        self._shown: dict[tuple[str, OpId, NodeId, int], float] = {}

    def of(self, op: OpId) -> list[StepRow]:
        return [step for step in self.steps.values() if step.op == op]

    # After a transaction.

    def after_write(self) -> None:
        latest = self._world.tables.latest_change()
        if latest < self._change:
            self._world.violated("change_numbers_grow", latest, self._change)
        if latest == self._change:
            return
        for row in self._world.tables.operations(self._change):
            self._look_at(row)
        self._change = latest

    def look_at_everything(self) -> None:
        """Also at what should not have changed: whoever follows the numbers has seen all there is."""
        for row in self._world.tables.operations():
            seen = self.operations.get(row.id)
            steps = {step.key: step for step in self._world.tables.steps(row.id)}
            if seen != row or any(self.steps.get(key) != step for key, step in steps.items()):
                self._world.violated("every_change_has_a_number", row)

    def _look_at(self, row: OperationRow) -> None:
        known = self.operations.get(row.id)
        self.operations[row.id] = row
        if known is None:
            self._world.trace.event("asked", row.kind, row.backend, row.id, "canary" if row.canary else "")
        elif known.wish is not row.wish:
            self._world.trace.event("wish", row.id, row.wish)
        steps = self._world.tables.steps(row.id)
        changed = [(self.steps.get(step.key), step) for step in steps]
        self.steps |= {step.key: step for step in steps}
        for before, after in changed:
            if before is not None and before != after:
                self._look_at_step(row, before, after)
        begun = [after for before, after in changed if before and after.attempt > before.attempt]
        self._begun_s |= {(*step.key, step.attempt): elapsed_s() for step in begun}
        if row.canary:
            for step in begun:
                self._check_canary(row, step, steps)
        if row.finished != all(step.state.final for step in steps):
            self._world.violated("over_exactly_when_all_steps_are", row)
        self._check_progress(row.id)

    def _look_at_step(self, row: OperationRow, old: StepRow, new: StepRow) -> None:
        self._world.trace.event(
            "step",
            new.op,
            new.node,
            f"{old.state}>{new.state}",
            new.stage,
            new.attempt,
            new.failures,
            new.reason,
        )
        if old.state.final and not new.state.final and not self._asked_again(row):
            self._world.violated("terminal_stays_terminal", old, new)
        if old.state.final and new.state.final and old.state is not new.state:
            self._world.violated("terminal_stays_terminal", old, new)
        if not old.attempt <= new.attempt <= old.attempt + 1 or new.version <= old.version:
            self._world.violated("attempts_grow_one_by_one", old, new)
        policy, back = self._world.pace.policy, new.stage is Stage.ROLL_BACK
        if new.failures > (policy.rollback_failures_max if back else policy.failures_max):
            self._world.violated("failures_are_bounded", old, new)
        if back and old.stage is Stage.PROVE:
            self._check_blame(old, new)
        if old.state in _AT_WORK and (new.failures > old.failures or new.state is State.FAILED):
            self._check_failure(old, new)
        if new.state is not old.state:
            self._check_end(row, new)

    def _asked_again(self, row: OperationRow) -> bool:
        """By its id, or by the same wish once more, which may have been on its way with the first."""
        wish = (row.kind, row.backend, frozenset(step.node for step in self.of(row.id)))
        return row.id in self.retried or self.wished[wish] > 1

    def _check_failure(self, old: StepRow, new: StepRow) -> None:
        """Nobody who is still at it has failed. A foreign worker may take longer than anybody waits; and one
        that was restarted may get what was meant for its life before, however late it comes: its registration
        is all that tells of that life's end."""
        worker = self._world.workers.get(old.node)
        if worker is None or worker.life is None or not worker.connected:
            return
        for hand in worker.life.hands:
            same = (hand.op, hand.attempt) == (old.op, old.attempt)
            known = worker.reports or self._waited_for(worker, worker.life, hand)
            if same and known and not self._answered(worker, hand):
                self._world.violated("still_at_work_is_no_failure", old, new)

    def _check_blame(self, old: StepRow, new: StepRow) -> None:
        """A version that nobody saw failing is not taken back, unless each proof was lost with its worker."""
        worker = self._world.workers.get(old.node)
        held = None if worker is None else worker.disk.get(build_of(self.operations[old.op].backend))
        suspects = {old.digest, held.digest if held else ""} & self._world.releases.broken
        if not suspects and old.failures + 1 < self._world.pace.policy.failures_max:
            self._world.violated("only_a_bad_version_is_taken_back", old, new)

    def _waited_for(self, worker: SimulatedWorker, life: Life, hand: InHand) -> bool:
        pace = self._world.pace
        waited_s = (pace.policy.silence + pace.timeouts.remove).total_seconds()
        return elapsed_s() - hand.begun_s < waited_s and self._is_for(worker, life, hand)

    def _is_for(self, worker: SimulatedWorker, life: Life, hand: InHand) -> bool:
        """Whether this life was meant, and not the one before."""
        begun_s = self._begun_s.get((OpId(hand.op), worker.node, hand.attempt), math.inf)
        return begun_s - life.began_s > _PASS_TRIPS * self._world.pace.store_most_s

    def _answered(self, worker: SimulatedWorker, hand: InHand) -> bool:
        """It has told how it ended already: what is in hand is the same request, brought twice by the bus."""
        return (hand.op, hand.attempt) in worker.answered

    def _check_end(self, row: OperationRow, step: StepRow) -> None:
        worker = self._world.workers.get(step.node)
        if worker is None:
            return
        build = build_of(row.backend)
        if self._changed_by_nobody_who_is_known(worker, build, step):
            return
        if step.state is State.SUCCEEDED:
            self._check_success(row, step, worker, build)
        elif (
            step.state is State.FAILED
            and step.stage is Stage.ROLL_BACK
            and "the node was rolled back to" in step.reason
        ):
            held = worker.disk.get(build)
            before = self._before.get(step.key, [])
            if self._world.releases.broken & set(
                before
            ):  # Then it goes back further: to the last that has run.
                return
            if worker.reports and before and (held is None or held.digest not in before):
                self._world.violated("went_back_to_the_version_before", step, before, held)

    def _changed_by_nobody_who_is_known(self, worker: SimulatedWorker, build: str, step: StepRow) -> bool:
        """The disk was changed last for an operation that was given up while its node was away: it was said
        then that it may go on."""
        by = OpId(worker.changed_by.get(build, step.op))
        other = self.steps.get((by, step.node))
        return by != step.op and other is not None and other.state is State.CANCELLED

    def _check_success(self, row: OperationRow, step: StepRow, worker: SimulatedWorker, build: str) -> None:
        held = worker.disk.get(build)
        if (held is None) != (row.kind is Kind.REMOVE):
            self._world.violated("success_is_on_the_disk", step, held)
        checked = row.kind is Kind.UPGRADE or worker.reports  # Others install what a tag stands for.
        if held is None or not checked or not step.digest:
            return
        told = not worker.reports and any(
            (step.op, number) in worker.done for number in range(step.attempt + 1)
        )
        # A worker without reports may still be at what was taken for done from its list.
        late = not worker.reports and worker.changed_by.get(build, step.op) != step.op
        if held.digest != step.digest and not told and not late:
            self._world.violated("success_has_the_pinned_digest", step, held)

    def _check_canary(self, row: OperationRow, begun: StepRow, steps: Iterable[StepRow]) -> None:
        """Alone until it has succeeded, or was away for so long that another goes first. One that had this
        version already proves nothing; and what has begun goes on beside another."""
        steps = list(steps)
        proven = any(step.state is State.SUCCEEDED and step.attempt for step in steps)
        others = [step for step in steps if step.state in _AT_WORK and step.key != begun.key]
        held = [
            step
            for step in others
            if self._world.roster.lost_s(step.node) < self._begun_s[*step.key, step.attempt]
        ]
        if held and not proven and begun.stage is Stage.APPLY:
            self._world.violated("the_canary_goes_alone", row.id, begun, *held)

    def _check_progress(self, op: OpId) -> None:
        for row in self._world.tables.progress(op):
            key = (row.op, row.node, row.attempt)
            if row.fraction < self._progress.get(key, 0.0):
                self._world.violated("progress_never_falls", row, self._progress[key])
            self._progress[key] = row.fraction

    def keyed(self, key: str, op: OpId) -> None:
        """Answered to somebody who sent this key, and may have been told of another operation before."""
        if self._keyed.setdefault(key, op) != op:
            self._world.violated("a_key_stands_for_one_operation", key, self._keyed[key], op)

    # Now and then, once it is calm.

    def what_is_listed_is_soon_done(self) -> None:
        """An install that a worker without reports has on its disk ends soon, also if its reply was lost."""
        there: dict[tuple[OpId, NodeId, int], float] = {}
        for step in self.steps.values():
            if self._is_listed(step):
                place = (step.op, step.node, step.attempt)
                there[place] = self._listed_s.get(place, elapsed_s())
                if elapsed_s() - there[place] > self._world.pace.listed_within_s:
                    self._world.violated("what_is_listed_is_soon_done", step)
        self._listed_s = there

    def _is_listed(self, step: StepRow) -> bool:
        """Somebody could ask, and would be told so."""
        worker, row = self._world.workers.get(step.node), self.operations[step.op]
        if worker is None or worker.reports or not worker.hears("backend.list") or not self._world.up:
            return False
        away = self._world.roster.away(step.node)
        at_work = step.state is State.RUNNING and row.kind is Kind.INSTALL
        return at_work and not away and build_of(row.backend) in worker.disk

    # When something is sent, and when a worker begins it.

    def sent(self, node: NodeId, verb: str, payload: bytes) -> None:
        if verb not in _COMMANDS:
            return
        self._world.trace.event("sent", node, verb)
        if (node, verb, payload) in self._sent:
            self._world.violated("an_attempt_is_sent_once", node, verb, payload)
        self._sent.add((node, verb, payload))

    def begins(self, worker: SimulatedWorker, hand: InHand) -> None:
        self._world.trace.event("begins", worker, hand.kind, hand.build, hand.op, hand.attempt)
        key = (OpId(hand.op), worker.node)
        if hand.kind in ("upgrade", "force"):
            self._before.setdefault(key, []).append(self._version_before(worker, hand))
        assert worker.life is not None, "it begins something"
        for other in worker.life.hands:
            if (
                other.op == hand.op
                and other.attempt != hand.attempt
                and self._must_not_meet(worker, worker.life, other, hand)
            ):
                self._world.violated("one_live_attempt", worker, other, hand)

    def _version_before(self, worker: SimulatedWorker, hand: InHand) -> str:
        """One that has the new version already, not seen running yet, goes back to the one before that."""
        held, step = worker.disk.get(hand.build), self.steps[OpId(hand.op), worker.node]
        if held is None:
            return ""
        return held.before if held.digest == step.digest else held.digest

    def _must_not_meet(self, worker: SimulatedWorker, life: Life, earlier: InHand, later: InHand) -> bool:
        """To a worker without reports a plain install may be said again: it is done once; it does not show
        that it is at work on what was meant for its life before."""
        if (earlier.op, earlier.attempt) in worker.answered or earlier.scope.cancel_called:
            return False
        if worker.reports:
            return True
        if not self._is_for(worker, life, earlier):
            return False
        asked_again_s = self.retried.get(OpId(earlier.op), -1.0)
        return {earlier.kind, later.kind} <= {"upgrade", "force"} and asked_again_s < earlier.begun_s

    # When a frontend hears of progress.

    def shown(self, frontend: str, key: Key, live: LiveProgress) -> None:
        """Within an attempt no bar goes back, as long as the frontend lives that shows it."""
        place = (frontend, *key, live.attempt)
        if live.fraction is not None and live.fraction < self._shown.get(place, 0.0):
            self._world.violated("shown_progress_never_falls", *place, self._shown[place], live.fraction)
        self._shown[place] = live.fraction or 0.0
