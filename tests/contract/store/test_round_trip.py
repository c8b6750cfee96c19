"""Whatever a node is, the store gives it back as it was."""

from dataclasses import replace
from datetime import UTC, datetime

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remuda.core.clock import SystemClock
from remuda.core.ids import BootId, MachineId, NodeId
from remuda.fleet.model import (
    Candidate,
    Claim,
    Invite,
    Label,
    LabelSource,
    Node,
    NodeType,
    Resources,
    StoredReport,
)
from remuda.fleet.ports import Note
from remuda.fleet.registration import Admit
from remuda.store.database import open_database
from remuda.store.fleet import SqlFleetStore
from tests.support.examples import examples

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
sizes = st.integers(0, 1 << 60)
instants = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
counts = st.integers(0, 1000)

candidates = st.builds(
    Candidate,
    labels=st.dictionaries(words, words, max_size=3),
    secret_hash=words,
    invite=st.none() | st.builds(Invite, words, words),
)
all_nodes = st.builds(
    Node,
    id=words.map(NodeId),
    name=words,
    node_type=st.sampled_from(NodeType),
    machine_id=words.map(MachineId),
    boot_id=words.map(BootId),
    address=words,
    http_address=words,
    version=words,
    resources=st.builds(Resources, sizes, sizes, sizes, sizes, sizes, sizes, words, words, words),
    vram_budget=words,
    vram_budget_override=st.none() | words,
    max_replicas=counts,
    max_replicas_override=st.none() | counts,
    last_heartbeat=instants,
    created_at=instants,
    updated_at=instants,
    labels=st.dictionaries(words, st.builds(Label, words, st.sampled_from(LabelSource)), max_size=5),
    report=st.none() | st.builds(StoredReport, words.map(BootId), sizes, words),
    source=words,
    secret_hash=words,
    invite=words,
    contested_from=words,
    claim=st.none() | st.builds(Claim, words.map(NodeId), candidates, instants, instants),
)


async def stored(url: str, first: Node, second: Node) -> tuple[Node, Node]:
    """The node as read back after it was written anew, and after it was turned into the second."""
    database = await open_database(url, clock=SystemClock())
    store = SqlFleetStore(database)
    try:
        await store.register(first.name, lambda known: Admit(first))
        written = (await store.one(first.id)).nodes[0]
        await store.register(first.name, lambda known: Admit(second))
        rewritten = (await store.one(first.id)).nodes[0]
        await store.remove(first.id, Note("removed"))
    finally:
        await database.close()
    return written, rewritten


@settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(first=all_nodes, other=all_nodes)
def test_node_comes_back_unchanged(database_url: str, first: Node, other: Node) -> None:
    second = replace(other, id=first.id, name=first.name)
    assert anyio.run(stored, database_url, first, second) == (first, second)
