"""What is kept of operations: as it was written, across releases of the program and of the schema."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from alembic import command
from alembic.config import Config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sqlalchemy import URL, Connection, MetaData, Table, Text, inspect, type_coerce, update

from remuda.core.clock import SystemClock
from remuda.core.errors import Problem
from remuda.core.ids import BootId, NodeId, ReplicaKey
from remuda.fleet.ports import Note
from remuda.ops.model import (
    Goal,
    Kind,
    ModelSpec,
    Operation,
    OpId,
    ReplicaTarget,
    RollOut,
    Source,
    Stage,
    State,
    Step,
    UnloadCause,
    UnloadReason,
    Wish,
)
from remuda.ops.ports import Filter, OpStore
from remuda.ops.reasons import StepCause, because, reason_in_words
from remuda.store.connections import Connections, parse_url, postgres_connections, sqlite_connections
from remuda.store.database import Database, open_database
from remuda.store.fleet import SqlFleetStore
from remuda.store.ops import SqlOpStore
from remuda.store.ops_codec import StoredSource, stored_source
from remuda.store.schema import SCHEMA_VERSION, operations, schema_info, steps
from tests.contract.store.builders import registered
from tests.support.examples import examples
from tests.support.op_builders import ONE, OPEN_FOR, an_operation, begin, end, submitted

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
escaped_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)  # Inside JSON anything goes.
counts = st.integers(0, 1000)
instants = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
specs = st.builds(
    ModelSpec,
    sha256=escaped_words,
    mirrors=st.lists(escaped_words, max_size=2).map(tuple),
    config=escaped_words,
    files=st.lists(escaped_words, max_size=2).map(tuple),
    any_files=st.booleans(),
)
# A model is looked up by its name, which is checked before; a backend's is inside JSON.
sources = st.builds(Source, words, escaped_words, escaped_words, words, escaped_words, st.none() | specs)
problems = st.builds(Problem, escaped_words, escaped_words, escaped_words, st.booleans())

typed_reasons = st.builds(because, st.sampled_from(StepCause), words, words)
reasons = (
    st.none()
    | typed_reasons.filter(lambda why: why.cause is not StepCause.OTHER)
    | words.map(reason_in_words)
)

all_operations = st.builds(
    Operation,
    id=words.map(OpId),
    kind=st.sampled_from(Kind),
    source=sources,
    roll_out=st.builds(RollOut, counts, st.booleans(), st.booleans()),
    asked_by=words,
    asked_at=instants,
    wish=st.sampled_from(Wish),
    expires=st.none() | instants,
    idempotency_key=words,
    selection=words,
    dismissed=st.booleans(),
)
all_steps = st.builds(
    Step,
    op=st.just(OpId("")),
    node=words.map(NodeId),
    node_name=words,
    kind=st.just(Kind.INSTALL),
    source=sources,
    goal=st.builds(Goal, st.lists(escaped_words, max_size=3).map(tuple), escaped_words, escaped_words),
    state=st.sampled_from(State),
    stage=st.sampled_from(Stage),
    proves=st.booleans(),
    rolls_back=st.booleans(),
    expires=st.none() | instants,
    attempt=counts,
    failures=counts,
    boot=st.none() | words.map(BootId),
    answer_by=st.none() | instants,
    wait_until=st.none() | instants,
    problem=st.none() | problems,
    why=reasons,
    replaced_by=st.none() | words.map(OpId),
)


async def stored(
    url: str, operation: Operation, first: Step, second: Step
) -> tuple[Operation, Sequence[Step], Operation, Sequence[Step]]:
    database = await open_database(url, clock=SystemClock())
    store = SqlOpStore(database)
    try:
        got = (await store.submit(operation, [first])).operation
        written = (await store.view(operation.id)).steps
        await store.commit([second], ONE, OPEN_FOR)
        view = await store.view(operation.id)
        await database.transact(lambda c, now: c.execute(operations.delete()))
    finally:
        await database.close()
    return got, written, view.operation, view.steps


@settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operation=all_operations, one=all_steps, other=all_steps, same_source=st.booleans())
def test_operation_and_step_come_back_unchanged(
    database_url: str, operation: Operation, one: Step, other: Step, same_source: bool
) -> None:
    source = operation.source if same_source else one.source
    first = replace(one, op=operation.id, kind=operation.kind, source=source)
    second = replace(
        other,
        op=first.op,
        node=first.node,
        node_name=first.node_name,
        kind=first.kind,
        source=first.source,
        goal=first.goal,
    )
    got, written, read, rewritten = anyio.run(stored, database_url, operation, first, second)
    assert read == replace(
        operation,
        asked_at=got.asked_at,
        expires=got.expires,
        finished_at=read.finished_at,
        version=read.version,
    )
    assert written == (replace(first, expires=got.expires),)
    assert rewritten == (replace(second, version=1),)


@pytest.mark.anyio
async def test_row_of_another_release_stays_readable(database: Database, op_store: OpStore) -> None:
    await submitted(op_store)
    older, newer = '{"backend":"llama-cpp"}', '{"at_once":4,"canary":true,"pace_s":9}'

    def rewrite(connection: Connection, now: datetime) -> None:
        as_text = {"source": type_coerce(older, Text), "roll_out": type_coerce(newer, Text)}
        connection.execute(update(operations).values(as_text))

    await database.transact(rewrite)
    operation = (await op_store.view(OpId("op-1"))).operation
    assert operation.source == Source("llama-cpp")
    assert operation.roll_out == RollOut(4, canary=True)


@pytest.mark.anyio
async def test_load_and_unload_of_an_earlier_release_stay_readable(
    database: Database, op_store: OpStore
) -> None:
    await submitted(op_store, an_operation(kind=Kind.UNLOAD))
    earlier = (
        '{"backend":"llama-cpp","galleries":"[]","uri":"","name":"makes room for big#0","alias":"",'
        '"model":"qwen","replica":1,"revision":"abc"}'
    )

    def rewrite(connection: Connection, now: datetime) -> None:
        connection.execute(update(operations).values(source=type_coerce(earlier, Text)))

    await database.transact(rewrite)
    view = await op_store.view(OpId("op-1"))
    makes_room = UnloadReason(UnloadCause.MAKES_ROOM, for_replica=ReplicaKey("big", 0))
    assert view.operation.source == Source("llama-cpp", "[]")
    assert view.operation.target == ReplicaTarget(ReplicaKey("qwen", 1), "abc", makes_room)
    assert view.steps[0].target == view.operation.target


@pytest.mark.parametrize(
    ("about", "text"),
    [
        (
            (Source("llama-cpp", "[]"), None),
            '{"backend":"llama-cpp","galleries":"[]","uri":"","name":"","alias":"","model":"","replica":0,'
            '"revision":""}',
        ),
        (
            (Source("llama-cpp", "[]"), ReplicaTarget(ReplicaKey("qwen", 1), "abc")),
            '{"backend":"llama-cpp","galleries":"[]","uri":"","name":"","alias":"","model":"qwen",'
            '"replica":1,"revision":"abc"}',
        ),
    ],
)
def test_same_wish_is_the_same_text_as_in_the_release_before(
    about: tuple[Source, ReplicaTarget | None], text: str
) -> None:
    """Or it would not be joined where both are at work."""
    assert TypeAdapter(StoredSource).dump_json(stored_source(*about)).decode() == text


# From one schema to the next.


def connections_to(url: str) -> Connections:
    match parse_url(url):
        case URL() as server:
            return postgres_connections(server)
        case Path() as path:
            path.parent.mkdir()
            return sqlite_connections(path, SystemClock())


def migrated(connection: Connection, version: str) -> None:
    config = Config()
    config.set_main_option("script_location", "remuda.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, version)


@pytest.fixture
async def first_schema(empty_database_url: str) -> AsyncIterator[Database]:
    """A database as the release before operations made it, with one node."""
    connections = connections_to(empty_database_url)

    node = {
        "id": "id-of-alpha", "name": "alpha", "node_type": "backend", "address": "alpha:50051",
        "http_address": "alpha:50050", "machine_id": "", "boot_id": "boot-1", "version": "",
        "total_vram": 0, "available_vram": 0, "total_ram": 8, "available_ram": 4, "total_disk": 0,
        "available_disk": 0, "gpu_vendor": "", "gpu_compute_capability": "", "capability": "default",
        "vram_budget": "", "max_replicas": 1, "approved": True, "drained": True, "leaving": False,
        "departed": False, "last_heartbeat": 1, "created_at": 1, "updated_at": 1,
    }  # fmt: skip
    label = {"node_id": "id-of-alpha", "key": "zone", "value": "attic", "source": "worker"}

    def make(connection: Connection, now: datetime) -> None:
        migrated(connection, "0001")
        connection.execute(schema_info.insert().values(version=1, min_compatible_version=1, updated_at=now))
        for table, row in (("nodes", node), ("node_labels", label)):
            connection.execute(Table(table, MetaData(), autoload_with=connection).insert().values(row))

    database = Database(connections)
    await database.transact(make)
    yield database
    await database.close()


def columns(connection: Connection) -> dict[str, list[str]]:
    found = inspect(connection)
    return {
        table: [
            f"{column['name']} {column['type']} {column['nullable']}" for column in found.get_columns(table)
        ]
        for table in found.get_table_names()
    }


@pytest.mark.anyio
async def test_first_schema_with_data_becomes_the_second_and_keeps_it(
    empty_database_url: str, first_schema: Database
) -> None:
    upgraded = await open_database(empty_database_url, clock=SystemClock())
    try:
        [node] = (await SqlFleetStore(upgraded).fleet()).nodes
        assert (node.name, node.approved, node.drained) == ("alpha", True, True)
        assert node.labels["zone"].value == "attic"
        store = SqlOpStore(upgraded)
        await submitted(store, an_operation(), [node.id])
        assert await begin(store)
        assert await end(store)
        info = await upgraded.read(lambda c, now: c.execute(schema_info.select()).one())
        assert info.version == SCHEMA_VERSION
    finally:
        await upgraded.close()


@pytest.mark.anyio
async def test_models_of_loads_from_before_are_known_after_an_upgrade(empty_database_url: str) -> None:
    database = Database(connections_to(empty_database_url))
    older = {
        "id": "op-1", "number": 1, "change": 1, "kind": "load", "backend": "llama-cpp", "version": 0,
        "source": '{"backend":"llama-cpp","model":"qwen"}', "roll_out": '{"at_once":1}', "wish": "run",
        "asked_by": "ada", "asked_at": 0, "selection": "", "dismissed": False,
    }  # fmt: skip

    def make(connection: Connection, now: datetime) -> None:
        migrated(connection, "0005")
        connection.execute(schema_info.insert().values(version=5, min_compatible_version=1, updated_at=now))
        known = Table("operations", MetaData(), autoload_with=connection)
        connection.execute(known.insert().values(older))

    await database.transact(make)
    await database.close()
    upgraded = await open_database(empty_database_url, clock=SystemClock())
    try:
        [found] = await SqlOpStore(upgraded).views(Filter(model="qwen"))
        assert found.operation.id == "op-1"
    finally:
        await upgraded.close()


@pytest.mark.anyio
async def test_release_of_the_first_schema_goes_on_working_beside_the_second(
    empty_database_url: str, first_schema: Database
) -> None:
    before = await first_schema.read(lambda c, now: columns(c))
    upgraded = await open_database(empty_database_url, clock=SystemClock())
    try:
        after = await upgraded.read(lambda c, now: columns(c))
        changed = {table: set(known) - set(after[table]) for table, known in before.items()}
        assert not any(changed.values()), "what was there is as it was"
        info = await upgraded.read(lambda c, now: c.execute(schema_info.select()).one())
        assert info.min_compatible_version == 1
        older = SqlFleetStore(first_schema)
        node = await registered(older)
        await submitted(SqlOpStore(upgraded), an_operation(), [node.id])
        await older.remove(node.id, Note("removed"))
        references = await upgraded.read(lambda c, now: [row.node_id for row in c.execute(steps.select())])
        assert references == [None]
    finally:
        await upgraded.close()
