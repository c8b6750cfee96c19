"""The table is kept up to date, at little cost, and outlives the store and the bus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from remuda.core.errors import StoreUnusable
from remuda.core.ids import BootId, FrontendId
from remuda.models.reading import read_model
from remuda.router.live_table import ReplicasChanged, TableKeeper, Tables, TableSources, Unloading
from remuda.router.usage import RequestLedger
from remuda.scheduler.catalogue import ModelCatalogue
from remuda.scheduler.model import Replica, ReplicaState, StoredModel
from remuda.wire import subjects
from remuda.wire.codec import encode
from tests.support.nodes import TOKENS
from tests.support.shared_lines import SharedLines
from tests.support.waiting import wait_until
from tests.unit.router.frontends import HandClock, SharedStore
from tests.unit.router.holding import holding
from tests.unit.scheduler.standing import a_row, a_view

pytestmark = pytest.mark.anyio

YAML = "name: qwen\nbackend: llama-cpp\nparameters: {model: qwen.gguf}\n"
REVISION = read_model(YAML).revision


class Rig:
    """One frontend's table."""

    def __init__(
        self,
        store: SharedStore,
        lines: SharedLines,
        folder: Path,
        name: str = "f-1",
        every_s: float = 3600,  # By itself it does not look while a test lasts.
    ) -> None:
        self.store, self.lines, self.clock = store, lines, HandClock()
        self.tables, self.ledger = Tables(), RequestLedger()
        sources = TableSources(store, store.standings, ModelCatalogue(store, folder), TOKENS)
        self.keeper = TableKeeper(
            self.tables, self.ledger, sources, lines, FrontendId(name), self.clock, every_s=every_s
        )

    @property
    def routes(self) -> list[str]:
        entry = self.tables.now.models.get("qwen")
        return [] if entry is None else [route.instance for route in entry.routes]

    def has_looked(self, times: int) -> bool:
        return self.store.reads["models"] >= times

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.keeper.run)
            yield
            tasks.cancel_scope.cancel()


@pytest.fixture
def store() -> SharedStore:
    made = SharedStore()
    made.models_by_name["qwen"] = StoredModel("qwen", YAML, REVISION, "added")
    made.nodes = (a_view(reports=False),)
    return made


@pytest.fixture
def rig(store: SharedStore, tmp_path: Path) -> Rig:
    return Rig(store, SharedLines(), tmp_path)


def a_replica(index: int = 0, state: ReplicaState = ReplicaState.LOADED) -> Replica:
    return a_row("qwen", index, revision=REVISION, state=state)


async def test_table_is_there_when_it_has_started(rig: Rig) -> None:
    rig.store.put(a_replica())
    async with rig.running():
        assert rig.routes == ["i-qwen-0"]


async def test_change_made_here_is_in_the_table_at_once_and_told_to_others(rig: Rig, tmp_path: Path) -> None:
    other = Rig(rig.store, rig.lines, tmp_path, "f-2")
    async with rig.running(), other.running():
        rig.store.put(a_replica())
        rig.keeper.rows_changed()
        await wait_until(lambda: rig.routes and other.routes)
    assert [sent.subject for sent in rig.lines.sent] == [subjects.REPLICAS_CHANGED]


async def test_unload_is_obeyed_by_a_frontend_that_cannot_read_the_store(rig: Rig, tmp_path: Path) -> None:
    cut_off = SharedStore()
    cut_off.models_by_name, cut_off.nodes = rig.store.models_by_name, rig.store.nodes
    other = Rig(cut_off, rig.lines, tmp_path, "f-2")
    for store in (rig.store, cut_off):
        store.put(a_replica(0), a_replica(1))
    async with rig.running(), other.running():
        assert other.routes == ["i-qwen-0", "i-qwen-1"]
        cut_off.down = True
        rig.store.put(a_replica(0, ReplicaState.UNLOADING), a_replica(1))
        rig.keeper.rows_changed()
        await wait_until(lambda: other.routes == ["i-qwen-1"])
        assert rig.routes == ["i-qwen-1"]
        cut_off.down = False
        await other.keeper.refresh()
        assert other.routes == ["i-qwen-0", "i-qwen-1"], "what is stored is what counts"


async def test_unload_of_another_process_under_the_same_key_is_not_obeyed(rig: Rig, tmp_path: Path) -> None:
    other = Rig(rig.store, rig.lines, tmp_path, "f-2")
    rig.store.put(a_replica())
    async with rig.running(), other.running():
        rig.store.down = True
        said = Unloading.of(replace(a_replica(), instance="the one before"))
        await rig.lines.publish(subjects.REPLICAS_CHANGED, encode(ReplicasChanged(unloading=(said,))))
        assert other.routes == ["i-qwen-0"]


async def test_drained_node_is_known_to_others_at_once_though_they_just_looked(
    rig: Rig, tmp_path: Path
) -> None:
    rig.store.put(a_replica())
    other = Rig(rig.store, rig.lines, tmp_path, "f-2")
    async with rig.running(), other.running():
        assert other.routes
        rig.store.nodes = (a_view(reports=False, drained=True),)
        await rig.keeper.fleet_changed()
        assert not rig.routes
        await wait_until(lambda: not other.routes)


async def test_change_of_which_nobody_told_is_found_all_the_same(store: SharedStore, tmp_path: Path) -> None:
    rig = Rig(store, SharedLines(), tmp_path, every_s=0.01)
    async with rig.running():
        rig.store.put(a_replica())
        await wait_until(lambda: rig.routes)


async def test_signal_that_cannot_be_read_is_a_signal(rig: Rig) -> None:
    async with rig.running():
        rig.store.put(a_replica())
        await rig.lines.publish(subjects.REPLICAS_CHANGED, b"\xff")
        await wait_until(lambda: rig.routes)


async def test_look_that_finds_nothing_new_leaves_the_table(rig: Rig) -> None:
    rig.store.put(a_replica())
    await rig.keeper.refresh()
    before, changed = rig.tables.now, rig.tables.changed
    rig.clock.passed_s += 10
    await rig.keeper.refresh()
    assert rig.tables.now is before
    assert rig.tables.changed is changed


async def test_only_what_changed_is_read_again(rig: Rig) -> None:
    rig.store.put(a_replica())
    for _ in range(5):
        await rig.keeper.refresh()
    assert rig.store.reads["replicas"] == 1
    assert rig.store.reads["standings"] == 1, "all within a second"
    rig.clock.passed_s += 1
    await rig.keeper.refresh()
    assert rig.store.reads["standings"] == 2


async def test_node_that_leaves_is_out_of_the_table_before_it_is_told_so(rig: Rig) -> None:
    """Else it could find nothing in flight, and go, while requests are still sent to it."""
    rig.store.put(a_replica())
    await rig.keeper.refresh()
    rig.store.nodes = (a_view(reports=False, leaving=True),)
    await rig.keeper.fleet_changed()
    assert rig.routes == []


async def test_change_that_moves_no_route_is_known_all_the_same(rig: Rig) -> None:
    rig.store.put(a_replica())
    await rig.keeper.refresh()
    rig.store.put(rig.store.rows[0], a_replica(1, ReplicaState.STAGING))
    await rig.keeper.refresh()
    assert rig.tables.now.change == 2


async def test_replica_of_a_worker_started_anew_is_routed_to_without_delay(rig: Rig) -> None:
    await rig.keeper.refresh()
    again = a_view(reports=False)
    node = replace(again.standing.node, boot_id=BootId("second"))
    rig.store.nodes = (replace(again, standing=replace(again.standing, node=node)),)
    rig.store.put(replace(a_replica(), boot=BootId("second")))
    await rig.keeper.refresh()
    assert rig.routes == ["i-qwen-0"]


async def test_loaded_models_go_on_answering_while_the_store_is_away(rig: Rig) -> None:
    rig.store.put(a_replica())
    with capture_logs() as logs:
        async with rig.running():
            rig.store.down = True
            for looks in (2, 3, 4):
                rig.keeper.rows_changed()
                await wait_until(partial(rig.has_looked, looks))
            assert rig.routes == ["i-qwen-0"]
            rig.store.down = False
            rig.store.put(a_replica(), a_replica(1))
            rig.keeper.rows_changed()
            await wait_until(lambda: len(rig.routes) == 2)
    events = [entry["event"] for entry in logs]
    assert events.count("table_not_refreshed") == 1
    assert events.count("table_refreshed_again") == 1


async def test_bus_that_is_down_costs_others_a_moment_and_us_nothing(rig: Rig) -> None:
    rig.lines.down = True
    async with rig.running():
        rig.store.put(a_replica())
        rig.keeper.rows_changed()
        await wait_until(lambda: rig.routes)


async def test_whoever_asks_for_a_look_is_told_when_there_was_none(rig: Rig) -> None:
    rig.store.down = True
    with pytest.raises(StoreUnusable):
        await rig.keeper.refresh()


async def test_many_who_ask_at_once_share_a_look(rig: Rig) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(rig.keeper.refresh)
    assert rig.store.reads["models"] <= 2


async def test_turns_of_replicas_that_are_gone_are_forgotten(rig: Rig) -> None:
    rig.store.put(a_replica())
    await rig.keeper.refresh()
    [route] = rig.tables.now.models["qwen"].routes
    with holding(rig.ledger, route):
        pass
    assert rig.ledger.last_turn(route) == 1
    rig.store.put()
    await rig.keeper.refresh()
    assert rig.ledger.last_turn(route) == 0


async def test_models_that_need_no_bytes_are_listed_and_repositories_are_not(
    rig: Rig, tmp_path: Path
) -> None:
    for name, file in (("echo", "echo"), ("repo", "org/model"), ("here", "here.gguf")):
        text = f"name: {name}\nbackend: b\nparameters: {{model: {file}}}\n"
        rig.store.models_by_name[name] = StoredModel(name, text, "r", "added")
    (tmp_path / "here.gguf").write_bytes(b"x")
    await rig.keeper.refresh()
    listed = {name for name, entry in rig.tables.now.models.items() if entry.listed}
    assert listed == {"echo", "here"}
