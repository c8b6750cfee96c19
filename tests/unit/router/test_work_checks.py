"""Which replicas are asked for a token, when, and what follows."""

from types import MappingProxyType
from typing import Self

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.ids import FrontendId, ReplicaKey
from remuda.inference.answers import AnswerSink
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind
from remuda.models.config import ModelConfig
from remuda.router.live_table import Tables
from remuda.router.stalls import UNANSWERED_MAX, asked, is_to_be_asked, looked
from remuda.router.table import Route, RoutedModel, Table
from remuda.router.work_checks import (
    MISSES_MAX,
    CheckOutcome,
    WorkChecks,
    WorkRecord,
    concluded,
    is_due,
    is_mine,
    noticed,
    tiny_work,
)
from tests.support.scripted_upstreams import route_to
from tests.support.waiting import wait_until

EVERY_S = 120.0


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (ModelConfig(name="m"), RequestKind.CHAT),
        (ModelConfig(name="m", known_usecases=("chat", "vision")), RequestKind.CHAT),
        (ModelConfig(name="m", embeddings=True), RequestKind.EMBEDDING),
        (ModelConfig(name="m", reranking=True), RequestKind.RERANK),
        (ModelConfig(name="m", known_usecases=("image",)), None),
        (ModelConfig(name="m", known_usecases=("transcript",)), None),
    ],
)
def test_each_kind_of_model_is_asked_for_what_it_does_or_for_nothing(
    config: ModelConfig, kind: RequestKind | None
) -> None:
    call = tiny_work(config, "r", 0)
    assert (None if call is None else call.kind) is kind


def test_one_that_works_proves_it_and_one_that_missed_is_asked_again_soon() -> None:
    record = WorkRecord(0.0)
    assert not is_due(record, EVERY_S, EVERY_S - 1)
    assert is_due(record, EVERY_S, EVERY_S)
    assert not is_due(noticed(record, True, 100.0), EVERY_S, EVERY_S)
    missed = concluded(record, CheckOutcome.MISSED, EVERY_S)
    assert not is_due(missed, EVERY_S, EVERY_S + 1)
    assert is_due(missed, EVERY_S, EVERY_S + EVERY_S / 4)


def test_one_that_was_busy_meanwhile_has_not_missed_and_what_cannot_be_asked_is_left_alone() -> None:
    missed = concluded(WorkRecord(0.0), CheckOutcome.MISSED, 1.0)
    assert concluded(missed, CheckOutcome.BUSY, 2.0).misses == 1
    assert concluded(missed, CheckOutcome.PRODUCED, 2.0).misses == 0
    assert not is_due(concluded(missed, CheckOutcome.UNCHECKABLE, 2.0), EVERY_S, 10_000.0)


@given(st.lists(st.sampled_from(list(CheckOutcome)), max_size=30))
def test_only_misses_in_a_row_add_up(outcomes: list[CheckOutcome]) -> None:
    record, in_a_row = WorkRecord(0.0), 0
    for now_s, outcome in enumerate(outcomes):
        record = concluded(record, outcome, float(now_s))
        in_a_row = 0 if outcome is CheckOutcome.PRODUCED else in_a_row + (outcome is CheckOutcome.MISSED)
        assert record.misses == in_a_row
        assert (record.misses >= MISSES_MAX) == (in_a_row >= MISSES_MAX)


frontends = st.sets(st.uuids().map(lambda one: FrontendId(str(one))), min_size=1, max_size=5)


@given(frontends, st.text(min_size=1, max_size=20), st.integers(0, 20))
def test_exactly_one_of_the_frontends_checks_a_replica(
    alive: set[FrontendId], model: str, index: int
) -> None:
    key = ReplicaKey(model, index)
    assert sum(is_mine(key, one, alive) for one in alive) == 1


class _Unloading:
    """An upstream whose process is stopped while it is asked, as one that is unloaded."""

    def __init__(self, tables: Tables, unloaded: bool) -> None:
        self._tables = tables
        self._unloaded = unloaded

    def at(self, endpoint: ReplicaEndpoint) -> Self:
        return self

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        if self._unloaded:
            self._tables.replace(Table())
        raise UpstreamFailed(Fault.UNREACHABLE, "the engine ended before its answer did")


@pytest.mark.anyio
@pytest.mark.parametrize("unloaded", [True, False])
async def test_one_that_is_unloaded_while_it_is_asked_is_not_suspected(unloaded: bool) -> None:
    route, tables, fenced = route_to("m"), Tables(), list[Route]()
    entry = RoutedModel(ModelConfig(name="m", backend="echo"), (route,), listed=True)
    tables.replace(Table(MappingProxyType({"m": entry})))

    async def fence(route: Route, why: UpstreamFailed) -> None:
        fenced.append(route)
        tables.replace(Table())

    async def healthy(endpoint: ReplicaEndpoint) -> bool | None:
        raise AssertionError("it has no request")

    async def reload(model: str) -> None:
        raise AssertionError("it has not missed twice")

    upstreams = _Unloading(tables, unloaded)
    checks = WorkChecks(
        FrontendId("f"),
        tables,
        upstreams,
        SystemClock(),
        SeededEntropy(1),
        in_flight=lambda key: 0,
        own=lambda key: 0,
        silent_s=lambda endpoint: 0.0,
        healthy=healthy,
        alive=lambda: {FrontendId("f")},
        fence=fence,
        reload=reload,
        every_s=0.01,
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(checks.run)
        await wait_until(lambda: not tables.routes())
        tasks.cancel_scope.cancel()
    assert fenced == ([] if unloaded else [route])


class _Mute:
    """An upstream whose process stands still, while its port takes connections."""

    def at(self, endpoint: ReplicaEndpoint) -> Self:
        return self

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        raise UpstreamFailed(Fault.UNREACHABLE, "it did not answer within 5 s", unsent=True, mute=True)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("requests", "health", "fault"),
    [(0, True, Fault.NOT_LOADED), (1, None, Fault.NOT_LOADED), (1, False, Fault.UNREACHABLE)],
    ids=["idle", "silent with a request", "listening no more"],
)
async def test_a_process_that_stands_still_is_fenced_though_its_port_takes_connections(
    requests: int, health: bool | None, fault: Fault
) -> None:
    route, tables, fenced, loaded = route_to("m"), Tables(), list[UpstreamFailed](), list[str]()
    entry = RoutedModel(ModelConfig(name="m", backend="echo"), (route,), listed=True)
    tables.replace(Table(MappingProxyType({"m": entry})))

    async def fence(route: Route, why: UpstreamFailed) -> None:
        fenced.append(why)
        tables.replace(Table())

    async def reload(model: str) -> None:
        loaded.append(model)

    async def healthy(endpoint: ReplicaEndpoint) -> bool | None:
        return health

    checks = WorkChecks(
        FrontendId("f"),
        tables,
        _Mute(),
        SystemClock(),
        SeededEntropy(1),
        in_flight=lambda key: requests,
        own=lambda key: requests,
        silent_s=lambda endpoint: 1000.0,
        healthy=healthy,
        alive=lambda: {FrontendId("f")},
        fence=fence,
        reload=reload,
        every_s=0.01,
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(checks.run)
        await wait_until(lambda: bool(fenced and (loaded or fault is Fault.UNREACHABLE)))
        tasks.cancel_scope.cancel()
    assert [why.fault for why in fenced] == [fault]


def test_busy_is_asked_only_after_a_long_silence_and_dead_only_when_it_answers_nothing() -> None:
    silent_s = 10_000.0
    stall = looked(None, silent_s, EVERY_S, 0.0)
    assert not is_to_be_asked(stall, silent_s, EVERY_S, EVERY_S / 2 - 1), "it has had the request too shortly"
    assert not is_to_be_asked(stall, 5.0, EVERY_S, 10_000.0), "it is saying something"
    assert is_to_be_asked(stall, silent_s, EVERY_S, EVERY_S / 2)
    for call in range(1, UNANSWERED_MAX):
        stall = asked(stall, False, float(call))
        assert not is_to_be_asked(stall, silent_s, EVERY_S, call + 1.0)
    assert not stall.wedged
    assert asked(stall, False, 100.0).wedged
    assert asked(stall, True, 100.0).unanswered == 0, "busy is not dead"
    assert looked(stall, 1.0, EVERY_S, 100.0).unanswered == 0, "it said something"
