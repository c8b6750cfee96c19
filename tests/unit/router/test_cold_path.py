"""What a request meets when its model has no route: it waits for the one load there is, and is told how that
went; or why there is none."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import anyio
import pytest
from anyio.abc import TaskGroup

from remuda.core import limits
from remuda.core.clock import SystemClock
from remuda.core.errors import NoCapacity, Problem, StoreUnusable, Unavailable
from remuda.core.ids import NodeId
from remuda.models.reading import read_model
from remuda.ops.model import State
from remuda.ops.progress import LiveProgress
from remuda.router.cold_path import ColdPath, UnknownModels
from remuda.router.live_table import Tables
from remuda.router.loading import LoadStatus, ModelLoadFailed, ModelLoading, ModelUnloaded, Overloaded
from remuda.router.suspects import Suspects
from remuda.router.table import Route, RoutedModel, Table
from remuda.scheduler.inspection import Inspector
from remuda.scheduler.model import Replica, endpoint_of
from tests.support.nodes import TOKENS, node
from tests.support.virtual_loop import VirtualLoop
from tests.support.virtual_ops import time_passes
from tests.support.waiting import wait_until
from tests.unit.scheduler.placers import DemandRig
from tests.unit.scheduler.rig import GB, OURS, YAML, Machine, a_model

pytestmark = pytest.mark.anyio

WAIT_S = 60.0


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualLoop}


class Asking(DemandRig):
    """Requests of one frontend. What each was told meanwhile, and how it ended, is kept."""

    def __init__(self, tasks: TaskGroup) -> None:
        super().__init__(tasks)
        self.tables = Tables()
        self.told: list[LoadStatus] = []
        self.served = 0
        self.refused: list[Exception] = []
        self.suspects = Suspects(
            self.tables,
            self,
            Inspector(self.replicas, self.engine, self.worker, table=self, history=self),
        )

    @property
    def cold(self) -> ColdPath:
        return ColdPath(self.demand, self.tables, self.suspects, self.clock, is_removed=self.is_removed)

    async def is_removed(self, node: NodeId) -> bool:
        return False

    async def ask(self, wait_s: float | None = WAIT_S, model: str = "qwen") -> None:
        try:
            await self.cold.bring(model, wait_s, self._meanwhile)
            self.served += 1
        except (ModelLoading, ModelLoadFailed, ModelUnloaded, NoCapacity) as error:
            self.refused.append(error)

    async def _meanwhile(self, status: LoadStatus) -> None:
        self.told.append(status)

    async def routed(self) -> None:
        """What is being loaded is ready, and the table knows."""
        row = await self.row()
        route = Route(row.key, row.node, "gpu-1", endpoint_of(row, node(), TOKENS))
        entry = RoutedModel(read_model(YAML), (route,), True)
        self.with_route.add("qwen")
        self.tables.replace(Table(MappingProxyType({"qwen": entry}), row.change))

    async def begun(self) -> Replica:
        """A frontend is at the load."""
        row = await self.row()
        [step] = (await self.operations.view(row.op)).steps
        running = replace(step, state=State.RUNNING, attempt=1)
        await self.operations.commit([running], OURS, timedelta(seconds=60))
        return row

    async def load_failed(self, why: str) -> None:
        row = await self.row()
        [step] = (await self.operations.view(row.op)).steps
        await self.over(step, State.FAILED, Problem("backend_failed", why, hint="use another file"))
        assert await self.replicas.remove(row)


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    async with Asking.running() as made:
        yield made


async def test_six_who_wait_cause_one_load_and_are_served_the_moment_it_is_ready(asking: Asking) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(asking.ask)
        await time_passes(30.5)
        assert len(await asking.rows()) == 1
        assert asking.served == 0
        ready_s = anyio.current_time()
        await asking.routed()
    assert (asking.served, asking.refused) == (6, [])
    assert anyio.current_time() - ready_s < 0.1


async def test_those_who_waited_go_without_asking_the_store_again(asking: Asking) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(asking.ask)
        await wait_until(lambda: len(asking.told) >= 50)
        looks = asking.refreshed
        await asking.routed()
    assert asking.served == 50
    assert asking.refreshed == looks


async def test_whoever_waits_is_told_every_second_how_far_it_is(asking: Asking) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asking.ask)
        await wait_until(lambda: bool(asking.told))
        await asking.begun()
        await time_passes(2)
        asking.live = LiveProgress(1, fraction=0.5, current_bytes=50, total_bytes=100)
        await time_passes(3)
        assert asking.told[-1] == LoadStatus("qwen", "installing", "gpu-1", 40.0, 50, 100, 1, 1)
        assert 5 <= len(asking.told) <= 8
        tasks.cancel_scope.cancel()


async def test_wait_that_runs_out_is_told_with_the_state_of_the_load(asking: Asking) -> None:
    await asking.ask(wait_s=10)
    [error] = asking.refused
    assert isinstance(error, ModelLoading)
    assert error.status.model == "qwen"
    assert error.retry_after_s == 10
    assert anyio.current_time() == pytest.approx(10, abs=1.5)
    assert len(await asking.rows()) == 1, "the load goes on"


@pytest.mark.parametrize(("waited_s", "retry_after_s"), [(0.0, 5), (1.0, 5), (60.0, 60), (400.0, 300)])
async def test_time_to_come_back_is_neither_at_once_nor_in_an_hour(
    asking: Asking, waited_s: float, retry_after_s: int
) -> None:
    await asking.ask(wait_s=waited_s)
    [error] = asking.refused
    assert isinstance(error, ModelLoading)
    assert error.retry_after_s == retry_after_s


async def test_without_a_limit_it_waits_for_as_long_as_it_takes(asking: Asking) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asking.ask, None)
        await time_passes(1200)
        assert asking.refused == []
        await asking.routed()
    assert asking.served == 1


async def test_load_that_fails_tells_everybody_why(asking: Asking) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(asking.ask)
        await time_passes(5)
        await asking.load_failed("unknown architecture")
    assert [type(error) for error in asking.refused] == [ModelLoadFailed] * 3
    [first, *_] = asking.refused
    assert isinstance(first, ModelLoadFailed)
    assert first.message == "qwen could not be loaded on gpu-1: unknown architecture"
    assert first.hint == "use another file"


async def test_whoever_asks_soon_after_a_failure_is_told_it_at_once(asking: Asking) -> None:
    await asking.ask(wait_s=1)
    await asking.load_failed("unknown architecture")
    asked_s = anyio.current_time()
    await asking.ask()
    assert isinstance(asking.refused[-1], ModelLoadFailed)
    assert anyio.current_time() - asked_s < 2
    assert await asking.rows() == ()


async def test_load_that_people_give_up_is_told_to_all_who_wait_and_begun_by_nobody(asking: Asking) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(asking.ask)
        await wait_until(lambda: len(asking.told) >= 3)
        await asking.unload(await asking.row())
        await wait_until(lambda: len(asking.refused) == 3)
    assert [type(error) for error in asking.refused] == [ModelUnloaded] * 3
    assert str(asking.refused[0]) == "qwen was unloaded by an administrator while it was loading"
    assert len(await asking.rows()) == 1


async def test_who_comes_while_a_load_is_given_up_waits_for_the_next(asking: Asking) -> None:
    await asking.ask(wait_s=0)
    row = await asking.row()
    await asking.unload(row)
    async with anyio.create_task_group() as tasks:
        await time_passes(2)
        tasks.start_soon(asking.ask)
        await time_passes(5)
        [step] = (await asking.operations.view(row.op)).steps
        await asking.over(step, State.CANCELLED)
        assert await asking.replicas.remove(row)
        await time_passes(3)
        assert (await asking.row()).op != row.op
        await asking.routed()
    assert asking.served == 1


async def test_model_that_no_node_can_take_is_refused_at_once_with_reasons(asking: Asking) -> None:
    for machine in asking.machines:
        machine.files = {}
    await asking.ask()
    [error] = asking.refused
    assert isinstance(error, NoCapacity)
    assert error.message.startswith("no node can take qwen: gpu-1, gpu-2: ")
    assert error.code == "no_capacity"
    assert anyio.current_time() < 1


async def test_nodes_that_wait_for_approval_are_counted_and_not_named(asking: Asking) -> None:
    for machine in asking.machines:
        machine.files = {}
    asking.machines += [Machine(NodeId(f"n-{one}"), f"$(stranger-{one})", approved=False) for one in range(3)]
    await asking.ask()
    [error] = asking.refused
    assert isinstance(error, NoCapacity)
    assert error.message.startswith("no node can take qwen: gpu-1, gpu-2: ")
    assert error.message.endswith("; 3 nodes wait for approval")
    assert "stranger" not in error.message


async def test_where_the_only_node_waits_for_approval_it_is_not_named(asking: Asking) -> None:
    asking.machines[:] = [Machine(NodeId("n-1"), "$(stranger)", approved=False)]
    await asking.ask()
    [error] = asking.refused
    assert isinstance(error, NoCapacity)
    assert error.message == "no node can take qwen: 1 node waits for approval"


async def test_backend_that_was_registered_a_moment_ago_is_not_said_to_be_missing(asking: Asking) -> None:
    """Its worker's report is on its way."""
    for machine in asking.machines:
        machine.installed = ()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asking.ask)
        await wait_until(lambda: asking.told)
        asking.machine.installed = ("llama-cpp",)
        await wait_until(asking.rows)
        await asking.routed()
    assert (asking.served, asking.refused) == (1, [])


async def test_backend_that_nobody_has_is_named_soon(asking: Asking) -> None:
    for machine in asking.machines:
        machine.installed = ()
    await asking.ask()
    [error] = asking.refused
    assert isinstance(error, NoCapacity)
    assert error.code == "backend_missing"
    assert "gpu-1, gpu-2: it has no llama-cpp, and no gallery has a backend called llama-cpp" in error.message
    assert 2 <= anyio.current_time() < 5


async def test_without_nodes_it_says_how_to_get_one(asking: Asking) -> None:
    asking.machines.clear()
    await asking.ask()
    [error] = asking.refused
    assert isinstance(error, NoCapacity)
    assert error.message == "no node can take qwen: there are no nodes"


async def test_busy_fleet_is_waited_for_and_refused_only_then(asking: Asking) -> None:
    await asking.configure(a_model("big"))
    asking.machines.pop(1)
    asking.machine.files["big.gguf"] = 50 * GB
    old = await asking.loaded()
    asking.machine.used_gb = 4
    await time_passes(30)
    asking.busy[old.key] = 1
    await asking.ask(wait_s=20, model="big")
    [error] = asking.refused
    assert isinstance(error, NoCapacity)
    assert "qwen is in use" in error.message
    told = error.message.removeprefix("no node can take big: ")
    assert f"{asking.told[0].waits_for}; try again later" == told, "who waits need not be told that"
    assert anyio.current_time() == pytest.approx(50, abs=2)


async def test_room_that_comes_free_while_one_waits_is_used(asking: Asking) -> None:
    await asking.configure(a_model("big"))
    asking.machines.pop(1)
    asking.machine.files["big.gguf"] = 50 * GB
    old = await asking.loaded()
    asking.machine.used_gb = 4
    await time_passes(30)
    asking.busy[old.key] = 1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asking.ask, 20.0, "big")
        await time_passes(5)
        asking.busy.clear()
        await time_passes(3)
        assert (await asking.row("big")).node == asking.machine.id
        tasks.cancel_scope.cancel()


async def test_look_that_hangs_is_waited_for_no_longer_than_a_load(asking: Asking) -> None:
    asking.after_refresh = anyio.sleep_forever
    with pytest.raises(Unavailable, match="whether qwen is being loaded is not known yet"):
        await asking.ask(wait_s=5)
    assert anyio.current_time() == pytest.approx(6, abs=1.5)
    assert len(asking.told) >= 3, "meanwhile it is told that there is nothing to tell"
    assert asking.refreshed == 1


async def test_leaving_early_stops_nothing(asking: Asking) -> None:
    with anyio.move_on_after(3):
        await asking.ask()
    assert len(await asking.rows()) == 1
    assert not (await asking.operations.live()).steps[0].state.final


async def test_load_of_another_frontend_is_seen(asking: Asking) -> None:
    assert await asking.cold.look("qwen") is None
    await (await asking.of_a_frontend()).look("qwen")
    assert await asking.cold.look("qwen") == LoadStatus("qwen", "pending", "gpu-1")


async def test_load_that_has_just_failed_is_told_as_such(asking: Asking) -> None:
    await (await asking.of_a_frontend()).look("qwen")
    [replica] = await asking.rows()
    [step] = (await asking.operations.view(replica.op)).steps
    await asking.over(step, State.FAILED, Problem("backend_failed", "unknown architecture"))
    assert await asking.replicas.remove(replica)
    assert await asking.cold.look("qwen") == LoadStatus("qwen", "failed", "gpu-1")


class Store:
    def __init__(self) -> None:
        self.looks = 0
        self.fails = ""
        self.answers = anyio.Event()
        self.answers.set()

    async def refresh(self) -> None:
        self.looks += 1
        await self.answers.wait()
        if self.fails:
            raise StoreUnusable(self.fails)


async def test_the_store_is_looked_at_for_whoever_asks() -> None:
    store = Store()
    unknown = UnknownModels(store.refresh, SystemClock())
    await unknown.look()
    await unknown.look()
    assert store.looks == 2


async def test_a_store_that_cannot_say_is_no_proof_that_there_is_no_such_model() -> None:
    store = Store()
    store.fails = "the disk is full"
    with pytest.raises(Unavailable, match="cannot look it up now: the disk is full"):
        await UnknownModels(store.refresh, SystemClock()).look()


async def test_only_so_many_wait() -> None:
    store = Store()
    store.answers = anyio.Event()
    unknown = UnknownModels(store.refresh, SystemClock())
    async with anyio.create_task_group() as tasks:
        for _ in range(limits.UNKNOWN_MODELS_WAITING_MAX):
            tasks.start_soon(unknown.look)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Overloaded):
            await unknown.look()
        store.answers.set()
