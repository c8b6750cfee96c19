"""Nodes with defaults, and a look at the tables behind the store's back."""

from collections.abc import Callable, Mapping
from datetime import timedelta

from sqlalchemy import BigInteger, Table, func, select, type_coerce, update

from remuda.core.ids import BootId, MachineId, NodeId
from remuda.fleet.admission import AdmissionPolicy, admit
from remuda.fleet.model import Candidate, Node, NodeType, Resources
from remuda.fleet.ports import FleetStore, KnownName
from remuda.fleet.registration import Admit
from remuda.store.database import Database
from remuda.store.schema import hearing_spans

GIB = 1 << 30
OPEN_HOUSE = AdmissionPolicy(auto_approve=True)


def candidate(
    name: str = "alpha", *, boot: str = "boot-1", labels: Mapping[str, str] | None = None
) -> Candidate:
    return Candidate(
        name=name,
        node_type=NodeType.BACKEND,
        address="10.0.0.5:50051",
        http_address="10.0.0.5:50050",
        machine_id=MachineId(f"machine-of-{name}"),
        boot_id=BootId(boot),
        version="0.1.0",
        resources=Resources(total_vram=24 * GIB, available_vram=20 * GIB, total_ram=64 * GIB),
        labels=labels or {},
        source="127.0.0.1",
    )


def admitting(wanted: Candidate, node_id: str) -> Callable[[KnownName], Admit]:
    """A decision that takes a new node in and leaves a known one as it is."""

    def decide(known: KnownName) -> Admit:
        return Admit(known.node or admit(wanted, known.fleet.now, NodeId(node_id), OPEN_HOUSE))

    return decide


async def registered(store: FleetStore, name: str = "alpha", labels: Mapping[str, str] | None = None) -> Node:
    decision = await store.register(name, admitting(candidate(name, labels=labels), f"id-of-{name}"))
    assert isinstance(decision, Admit)
    return decision.node


async def row_count(database: Database, table: Table) -> int:
    count = await database.read(lambda c, now: c.scalar(select(func.count()).select_from(table)))
    assert isinstance(count, int)
    return count


async def let_time_pass(database: Database, passed: timedelta) -> None:
    """For the hearing only: what was heard until now moves into the past."""
    by = passed // timedelta(microseconds=1)
    earlier = update(hearing_spans).values(
        since=type_coerce(hearing_spans.c.since, BigInteger) - by,
        until=type_coerce(hearing_spans.c.until, BigInteger) - by,
    )
    await database.transact(lambda c, now: c.execute(earlier))
