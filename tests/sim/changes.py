"""Checkers of what is written. After each transaction the rows before and after it are compared: whatever
the code believes it did, these are the changes it may have made."""

from collections.abc import Callable

from remuda.core.ids import NodeId
from tests.sim.ledger import Ledger, Write
from tests.sim.trace import Trace
from tests.support.fleet_tables import Books, NodeRow, State


def approval_is_given(ledger: Ledger, write: Write, old: NodeRow, new: NodeRow) -> bool:
    """Only by an admin, or to a machine that needs none."""
    if old.approved or not new.approved:
        return True
    by_admin = write.amends("approved") and ledger.intended("approved", new.id)
    return by_admin or (write.kind == "register" and ledger.trusts(new))


def approval_is_kept(ledger: Ledger, write: Write, old: NodeRow, new: NodeRow) -> bool:
    return new.approved or not old.approved


def rows_keep_their_machine(ledger: Ledger, write: Write, old: NodeRow, new: NodeRow) -> bool:
    """Whoever comes instead of a machine gets a row of its own, and so an id of its own."""
    same_secret = not old.secret_hash or old.secret_hash == new.secret_hash
    return same_secret and old.machine_id == new.machine_id


def drain_is_an_admins(ledger: Ledger, write: Write, old: NodeRow, new: NodeRow) -> bool:
    if old.drained == new.drained:
        return True
    event = "drained" if new.drained else "resumed"
    return write.amends(event) and ledger.intended(event, new.id)


def overrides_are_an_admins(ledger: Ledger, write: Write, old: NodeRow, new: NodeRow) -> bool:
    budget, replicas = new.vram_budget_override, new.max_replicas_override
    if budget != old.vram_budget_override and not (
        write.amends("vram_budget_set") and ledger.intended("vram_budget_set", new.id, str(budget))
    ):
        return False
    return replicas == old.max_replicas_override or (
        write.amends("max_replicas_set") and ledger.intended("max_replicas_set", new.id, str(replicas))
    )


def own_drain_is_the_workers(ledger: Ledger, write: Write, old: NodeRow, new: NodeRow) -> bool:
    if old.leaving == new.leaving:
        return True
    if new.leaving:
        return write.amends("leaving")
    return write.kind == "register" or write.amends("resumed")


def farewells_are_of_this_boot(ledger: Ledger, write: Write, old: NodeRow, new: NodeRow) -> bool:
    """What an earlier life said on its way out is not held against the next."""
    goes = (new.leaving and not old.leaving) or (new.departed and not old.departed)
    said = {(new.id, new.boot_id), (new.id, None)}
    return not goes or not said.isdisjoint(ledger.farewells)


def only_the_worker_is_heard(ledger: Ledger, write: Write, old: NodeRow, new: NodeRow) -> bool:
    """No admin, no timer and no frontend makes a node look alive; nor does any of them say its goodbye."""
    if old.last_heartbeat != new.last_heartbeat and write.kind not in ("register", "beat"):
        return write.kind == "listen"  # Where the clock was set back, the past is moved.
    told = write.kind == "amend" and write.note is None  # Its word that it cannot be commanded.
    if old.bus_trouble_heard_at != new.bus_trouble_heard_at and not told:
        return write.kind in ("register", "listen")
    if old.departed == new.departed:
        return True
    return write.amends("departed") if new.departed else write.kind in ("register", "beat")


def reports_go_forward(ledger: Ledger, write: Write, old: NodeRow, new: NodeRow) -> bool:
    """Within a boot no report is replaced by an older one, also if the boot was forgotten in between."""
    if new.report_boot_id is None or new.report_sequence is None:
        return True
    key = (new.id, new.report_boot_id)
    highest = ledger.sequences.get(key, -1)
    ledger.sequences[key] = max(highest, new.report_sequence)
    return new.report_sequence >= highest and new.report_boot_id == new.boot_id


def labels_are_an_admins(ledger: Ledger, write: Write, old: State, new: State) -> bool:
    for node_id, row in new.nodes.items():
        former = old.named(row.name)  # Another row's, where one takes the other's place: its labels are kept.
        before = {} if former is None else old.admin_labels.get(former.id, {})
        after = new.admin_labels.get(node_id, {})
        if before == after:
            continue
        gone = before.keys() - after.keys()
        given = {key: value for key, value in after.items() if before.get(key) != value}
        if not all(
            write.amends("unlabelled") and ledger.intended("unlabelled", node_id, key) for key in gone
        ):
            return False
        if not all(
            write.amends("labelled") and ledger.intended("labelled", node_id, f"{key}={value}")
            for key, value in given.items()
        ):
            return False
    return True


def ids_are_stable(ledger: Ledger, write: Write, old: State, new: State) -> bool:
    """A row comes by registering and goes by an admin's word; in between its name keeps its id. A row that
    waits for approval may also give way to another machine."""
    if write.kind not in ("register", "supersede") and new.nodes.keys() - old.nodes.keys():
        return False
    if any(node_id in ledger.removed for node_id in new.nodes):
        return False
    gone = [old.nodes[node_id] for node_id in old.nodes.keys() - new.nodes.keys()]
    return all(_may_go(ledger, write, row, new) for row in gone)


def _may_go(ledger: Ledger, write: Write, row: NodeRow, new: State) -> bool:
    if write.kind == "remove":
        return ledger.intended("removed", row.id)
    heir = new.named(row.name)
    if heir is None or not _is_gone(ledger, row):
        return False
    if write.kind == "supersede":
        return ledger.intended("approved", heir.id)
    return write.kind == "register" and not row.approved and not row.secret_hash


def _is_gone(ledger: Ledger, row: NodeRow) -> bool:
    """Names are not taken from the living."""
    return row.departed or ledger.hearing.silence_most_s(ledger.heard[row.id]) >= ledger.offline_after_s


def new_nodes_wait_for_approval(ledger: Ledger, write: Write, old: State, new: State) -> bool:
    """An admin approves a machine, not a name; and what is automatic is for new names only."""
    come = [new.nodes[node_id] for node_id in new.nodes.keys() - old.nodes.keys()]
    return all(_may_be_in(ledger, write, row, old) for row in come if row.approved)


def _may_be_in(ledger: Ledger, write: Write, row: NodeRow, old: State) -> bool:
    if write.kind == "supersede":
        return ledger.intended("approved", row.id)
    return ledger.trusts(row) and old.named(row.name) is None


OF_NODES: tuple[Callable[[Ledger, Write, NodeRow, NodeRow], bool], ...] = (
    approval_is_given,
    approval_is_kept,
    rows_keep_their_machine,
    drain_is_an_admins,
    overrides_are_an_admins,
    own_drain_is_the_workers,
    farewells_are_of_this_boot,
    only_the_worker_is_heard,
    reports_go_forward,
)
OF_FLEETS: tuple[Callable[[Ledger, Write, State, State], bool], ...] = (
    labels_are_an_admins,
    ids_are_stable,
    new_nodes_wait_for_approval,
)


def _last_heard(row: NodeRow) -> tuple[int, int | None]:
    return row.last_heartbeat, row.bus_trouble_heard_at


class ChangeChecker:
    def __init__(
        self, ledger: Ledger, books: Books, public_key: Callable[[NodeId], str | None], trace: Trace
    ) -> None:
        self.state = books.state()
        self._ledger = ledger
        self._books = books
        self._public_key = public_key
        self._trace = trace

    def after(self, write: Write) -> None:
        old, self.state = self.state, self._books.state()
        new = self.state
        for node_id, row in new.nodes.items():
            before = old.nodes.get(node_id)
            if before is not None and before != row:
                self._check_node(write, before, row)
            heard = before is None or _last_heard(before) != _last_heard(row)
            if heard and write.kind not in ("listen", "supersede"):
                self._ledger.sign_of_life(node_id)
            if write.kind == "register" and row.claim_id and (before is None or before.claim != row.claim):
                self._ledger.sign_of_life(row.claim_id)
        if write.kind == "listen":
            self._ledger.hearing.proved()
        if write.kind != "beat":
            self._check_fleet(write, old, new)

    def _check_node(self, write: Write, old: NodeRow, new: NodeRow) -> None:
        for claim in OF_NODES:
            if not claim(self._ledger, write, old, new):
                raise self._trace.violated(claim.__name__, write, "from", old, "to", new)

    def _check_fleet(self, write: Write, old: State, new: State) -> None:
        for claim in OF_FLEETS:
            if not claim(self._ledger, write, old, new):
                raise self._trace.violated(claim.__name__, write)
        for node_id in old.nodes.keys() - new.nodes.keys():
            self._ledger.removed.add(node_id)
        if write.kind in ("remove", "supersede") and (lacking := self._not_revoked()):
            raise self._trace.violated("removed_keys_are_revoked", *lacking)

    def _not_revoked(self) -> list[NodeId]:
        revoked = self._books.revoked()
        keys = {node_id: self._public_key(node_id) for node_id in self._ledger.removed}
        return sorted(node_id for node_id, key in keys.items() if key is not None and key not in revoked)
