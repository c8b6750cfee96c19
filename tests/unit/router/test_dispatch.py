"""One request's way to a replica and back."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

import anyio
import pytest
from msgspec import structs

from remuda.core.clock import SystemClock
from remuda.core.errors import NoCapacity
from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.answers import AnswerFormat, AnswerSink
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.media_requests import SoundRequest
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind, Upstream
from remuda.inference.requests import ChatRequest, RequestMessage
from remuda.models.config import ModelConfig
from remuda.router import dispatch
from remuda.router.dispatch import RequestDispatcher, RoutingRecord, WaitLimits, may_try_again
from remuda.router.fairness import ANYONE, SeatClaim
from remuda.router.live_table import Tables
from remuda.router.loading import LoadStatus, Meanwhile, ModelLoading, ModelUnknown, Overloaded
from remuda.router.table import Route, RoutedModel, Table
from remuda.router.usage import RequestLedger
from tests.support.answer_sinks import RelayedClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MODEL = ModelConfig(name="qwen", backend="echo")


def route(index: int = 0, *, parallel: int = 0, change: int = 1) -> Route:
    node = f"n{index}"
    return Route(
        ReplicaKey("qwen", index), NodeId(node), node, ReplicaEndpoint(node), change=change, parallel=parallel
    )


def call() -> InferenceCall:
    request = ChatRequest(model="qwen", messages=[RequestMessage("user", "hello")])
    return InferenceCall(RequestKind.CHAT, request, b"{}", MODEL, "r-1", 0)


class Replica:
    """Does to each request what its script says."""

    def __init__(self, *script: str) -> None:
        self.script = list(script)
        self.served = 0
        self.configs: list[ModelConfig] = []
        self.files: list[ReplicaEndpoint | None] = []
        self.gate = anyio.Event()

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        relay = sink.relay(AnswerFormat.OPENAI)
        assert relay is not None
        self.served += 1
        self.configs.append(call.model)
        self.files.append(call.files)
        match self.script.pop(0) if self.script else "answer":
            case "refuse connection":
                raise UpstreamFailed(Fault.UNREACHABLE, "nobody listens", unsent=True)
            case "have no model":
                raise UpstreamFailed(Fault.NOT_LOADED, "not ready", status=503)
            case "crash":
                raise UpstreamFailed(Fault.UNREACHABLE, "the connection was lost")
            case "refuse":
                raise UpstreamFailed(Fault.REFUSED, "no such thing", status=400)
            case "break off":
                await relay.begin(200, b"text/event-stream")
                raise UpstreamFailed(Fault.BROKE, "gone")
            case "wait":
                await self.gate.wait()
        await relay.begin(200, b"application/json")
        await relay.write(b"done")


class Loads:
    """Stands for whoever loads models."""

    def __init__(self) -> None:
        self.doubted: list[Route] = []
        self.brought = 0
        self.is_gone = False
        self.removed_nodes: set[NodeId] = set()
        self.on_bring: Callable[[], None] = lambda: None
        self.on_doubt: Callable[[], None] = lambda: None
        self.drop: Callable[[Route], None] = lambda route: None

    async def bring(self, model: str, wait_s: float | None, meanwhile: Meanwhile, *wishes: object) -> None:
        self.brought += 1
        if wait_s == 0:
            raise ModelLoading("it is being loaded", LoadStatus(model), 5)
        await meanwhile(LoadStatus(model))
        self.on_bring()

    def suspect(self, route: Route, why: UpstreamFailed) -> None:
        self.doubted.append(route)
        if self.is_gone:
            self.drop(route)
        self.on_doubt()

    async def gone(self, route: Route) -> bool:
        return self.is_gone

    async def removed(self, route: Route) -> bool:
        return route.node in self.removed_nodes


class House:
    def __init__(self, *routes: Route, waits: WaitLimits | None = None) -> None:
        self.tables, self.ledger, self.loads = Tables(), RequestLedger(), Loads()
        self.replicas: dict[str, Replica] = {}
        self.waiting = 0
        self.waited_for: list[str] = []
        self.loads.drop = self.drop
        self.show(routes)
        self.dispatcher = RequestDispatcher(
            self.tables,
            self.ledger,
            self,
            self.loads,
            SystemClock(),
            waits or WaitLimits(),
            figures=self,
        )

    def waiting_changed(self, model: str, by: int) -> None:
        self.waiting += by

    def show(self, routes: Iterable[Route], config: ModelConfig = MODEL) -> None:
        self.tables.replace(Table({"qwen": RoutedModel(config, tuple(routes), listed=True)}))

    def drop(self, route: Route) -> None:
        self.show(one for one in self.tables.now.models["qwen"].routes if one.id != route.id)

    def at(self, endpoint: ReplicaEndpoint) -> Upstream:
        return self.replicas.setdefault(endpoint.address, Replica())

    def script(self, index: int, *script: str) -> Replica:
        return self.replicas.setdefault(f"n{index}", Replica(*script))

    async def ask(
        self, client: RelayedClient | None = None, *, node: str = "", claim: SeatClaim = ANYONE
    ) -> tuple[RelayedClient, RoutingRecord]:
        client, routing = client or RelayedClient(), RoutingRecord(node, claim=claim)

        async def meanwhile(status: LoadStatus) -> None:
            self.waited_for.append(status.waits_for)

        await self.dispatcher.answer(call(), client, routing, meanwhile)
        return client, routing


async def test_loaded_model_answers_without_asking_anybody_to_load_it() -> None:
    house = House(route())
    client, routing = await house.ask()

    assert client.body == b"done"
    assert routing.route == route()
    assert house.loads.brought == 0
    assert house.ledger.own() == {}


async def test_replica_that_fails_before_its_first_byte_is_replaced_by_another() -> None:
    house = House(route(0), route(1))
    house.script(0, "refuse connection")
    client, routing = await house.ask()

    assert client.body == b"done"
    assert [one.key.index for one in routing.tried] == [0, 1]
    assert house.loads.doubted == [route(0)]


async def test_request_that_may_have_crashed_a_replica_is_given_to_one_other_only() -> None:
    house = House(*(route(index) for index in range(3)))
    for index in range(3):
        house.script(index, "crash")
    house.loads.is_gone = True
    with pytest.raises(UpstreamFailed):
        await house.ask()

    assert sum(replica.served for replica in house.replicas.values()) == 2
    assert house.loads.brought == 0


@pytest.mark.parametrize("fate", ["refuse connection", "have no model"])
async def test_all_replicas_are_gone_so_the_model_is_loaded_again(fate: str) -> None:
    house = House(*(route(index) for index in range(3)))
    for index in range(3):
        house.script(index, fate)
    house.loads.is_gone = True
    house.loads.on_bring = lambda: house.show([route(3)])
    client, routing = await house.ask()

    assert client.body == b"done"
    assert [one.key.index for one in routing.tried] == [0, 1, 2, 3]
    assert house.loads.brought == 1
    said = house.waited_for[0]
    assert said == f"{route(2).node_name}: {routing.failures[-1].message}", "before it is looked for"


@pytest.mark.parametrize(("then", "answered"), [("answer", True), ("refuse connection", False)])
async def test_replica_that_turned_a_request_away_and_is_found_well_is_tried_once_more(
    then: str, answered: bool
) -> None:
    """It was just being started again."""
    house = House(route(0))
    replica = house.script(0, "refuse connection", then)
    if answered:
        client, _ = await house.ask()
        assert client.body == b"done"
    else:
        with pytest.raises(UpstreamFailed, match="nobody listens"):
            await house.ask()

    assert replica.served == 2
    assert house.loads.brought == 0


async def test_replica_that_may_have_worked_on_a_request_is_not_given_it_again() -> None:
    house = House(route(0))
    replica = house.script(0, "crash", "answer")
    with pytest.raises(UpstreamFailed, match="was lost"):
        await house.ask()

    assert replica.served == 1


@pytest.mark.parametrize("fate", ["refuse connection", "crash"])
async def test_replica_that_was_out_of_reach_and_is_back_is_tried_once_more(fate: str) -> None:
    """No other can be loaded meanwhile, and those who wait notice that it is back."""
    house = House(route(0))
    replica = house.script(0, fate, "answer")
    house.loads.is_gone = True
    house.loads.on_bring = lambda: house.show([route(0)])
    client, _ = await house.ask()

    assert client.body == b"done"
    assert replica.served == 2
    assert house.loads.brought == 1


async def test_model_is_loaded_again_for_a_request_only_once() -> None:
    house = House(route(0), route(1))
    for index in range(3):
        house.script(index, "have no model")
    house.loads.is_gone = True
    house.loads.on_bring = lambda: house.show([route(2)])
    with pytest.raises(UpstreamFailed, match="not ready"):
        await house.ask()

    assert house.loads.brought == 1


async def test_request_for_one_node_is_answered_by_none_other() -> None:
    house = House(*(route(index) for index in range(3)))
    for _ in range(3):
        _, routing = await house.ask(node="n1")
        assert routing.route == route(1)
    house.replicas["n1"].script = ["refuse connection"] * 2
    house.loads.is_gone = True
    with pytest.raises(NoCapacity, match="qwen has no replica on the node n1; its failure: nobody listens"):
        await house.ask(node="n1")
    with pytest.raises(NoCapacity, match="no replica on the node attic"):
        await house.ask(node="attic")

    assert list(house.replicas) == ["n1"]
    assert house.loads.brought == 0


async def test_files_of_a_request_go_to_the_worker_of_the_replica_that_is_tried() -> None:
    workers = [ReplicaEndpoint(f"worker-{index}:1") for index in range(2)]
    house = House(*[replace(route(index), worker=worker) for index, worker in enumerate(workers)])
    house.replicas = {"n0": Replica("refuse connection"), "n1": Replica()}
    request = SoundRequest(model="qwen", text="rain")
    await house.dispatcher.answer(
        structs.replace(call(), kind=RequestKind.SOUND, request=request),
        RelayedClient(),
        RoutingRecord(),
        _not_shown,
    )

    assert [house.replicas[name].files for name in ("n0", "n1")] == [[workers[0]], [workers[1]]]


async def _not_shown(status: LoadStatus) -> None:
    pass


def _failed(*kinds: str) -> list[UpstreamFailed]:
    known = {
        "unsent": UpstreamFailed(Fault.UNREACHABLE, "connection refused", unsent=True),
        "lost": UpstreamFailed(Fault.UNREACHABLE, "the connection was lost"),
        "broke": UpstreamFailed(Fault.BROKE, "it broke off"),
        "no model": UpstreamFailed(Fault.NOT_LOADED, "no model"),
        "refused": UpstreamFailed(Fault.REFUSED, "no such thing"),
    }
    return [known[kind] for kind in kinds]


@pytest.mark.parametrize(
    ("kinds", "again"),
    [
        (["unsent"] * 5, True),
        (["no model", "no model", "unsent"], True),
        (["broke"], True),
        (["broke", "no model"], True),
        (["broke", "unsent", "lost"], False),
        (["lost", "lost"], False),
        (["unsent", "refused"], False),
        (["unsent"] * 16, False),
    ],
)
def test_who_may_be_asked_again(kinds: list[str], again: bool) -> None:
    assert may_try_again(_failed(*kinds)) is again


async def test_answer_that_breaks_off_is_not_begun_anew() -> None:
    house = House(route(0), route(1))
    house.script(0, "break off")
    with pytest.raises(UpstreamFailed, match="gone"):
        await house.ask()

    assert "n1" not in house.replicas
    assert house.loads.doubted == [route(0)]


async def test_answer_of_a_node_that_was_removed_says_so() -> None:
    house = House(route(0))
    house.script(0, "break off")
    house.loads.removed_nodes = {NodeId("n0")}
    with pytest.raises(UpstreamFailed, match="node n0 was removed while it answered"):
        await house.ask()


async def test_what_any_replica_would_refuse_is_asked_of_no_other() -> None:
    house = House(route(0), route(1))
    house.script(0, "refuse")
    with pytest.raises(UpstreamFailed, match="no such thing"):
        await house.ask()

    assert house.loads.doubted == []
    assert "n1" not in house.replicas


async def test_only_replica_failed_and_is_well_again_so_the_failure_is_told() -> None:
    house = House(route())
    house.script(0, "crash")
    with pytest.raises(UpstreamFailed, match="was lost"):
        await house.ask()

    assert house.loads.brought == 0


async def test_replica_that_failed_is_known_again_when_figures_about_it_have_changed() -> None:
    house = House(route())
    failing = house.script(0, "crash")
    house.loads.on_doubt = lambda: house.show([replace(route(), vram_free=1, silent=True)])

    with pytest.raises(UpstreamFailed):
        await house.ask()

    assert failing.served == 1


async def test_only_replica_is_gone_and_the_next_one_to_be_loaded_answers() -> None:
    house = House(route(0))
    house.script(0, "refuse connection")
    house.loads.is_gone = True
    house.loads.on_bring = lambda: house.show([route(1)])
    client, routing = await house.ask()

    assert client.body == b"done"
    assert routing.route == route(1)


async def test_model_that_is_not_loaded_is_brought_and_waited_for() -> None:
    house = House()
    house.loads.on_bring = lambda: house.show([route()])
    client, routing = await house.ask()

    assert client.body == b"done"
    assert routing.waited_s >= 0


async def test_wait_for_a_load_ends() -> None:
    house = House(waits=WaitLimits(load_s=0.0))
    with pytest.raises(ModelLoading):
        await house.ask()


async def test_full_replica_is_waited_for_in_the_order_of_arrival() -> None:
    house = House(route(parallel=1))
    replica = house.script(0, "wait")
    done: list[int] = []

    async def ask(number: int) -> None:
        await house.ask()
        done.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(ask, number)
            await wait_until(lambda number=number: replica.served + house.waiting == number + 1)  # type: ignore[misc]
        replica.gate.set()

    assert done == [0, 1, 2, 3]
    assert house.waiting == 0
    assert house.ledger.own() == {}


async def test_seat_that_becomes_free_is_told_to_whoever_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: the looks for what frees seats on other frontends are put off here."""
    monkeypatch.setattr(dispatch, "_TOLD_S", 3600.0)
    house = House(route(parallel=1), waits=WaitLimits(seat_s=3600.0))
    replica = house.script(0, "wait", "answer", "answer")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(house.ask)
            await wait_until(lambda: house.waiting == 2)
            replica.gate.set()
    assert replica.served == 3


async def test_as_many_wait_as_may_and_the_next_is_told_to_come_back() -> None:
    house = House(route(parallel=1), waits=WaitLimits(waiting_max=1))
    replica = house.script(0, "wait")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.ask)
        await wait_until(lambda: replica.served == 1)
        tasks.start_soon(house.ask)
        await wait_until(lambda: house.waiting == 1)
        with pytest.raises(Overloaded):
            await house.ask()
        replica.gate.set()

    assert replica.served == 2


async def test_replica_that_is_loaded_meanwhile_serves_those_who_wait() -> None:
    house = House(route(0, parallel=1))
    first, second = house.script(0, "wait"), house.script(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.ask)
        await wait_until(lambda: first.served == 1)
        tasks.start_soon(house.ask)
        await wait_until(lambda: house.waiting == 1)
        house.show([route(0, parallel=1), route(1, parallel=1)])
        await wait_until(lambda: second.served == 1)
        first.gate.set()

    assert house.waiting == 0


@pytest.mark.parametrize("fate", ["answer", "refuse", "refuse connection", "break off"])
async def test_count_is_back_at_zero_however_a_request_ends(fate: str) -> None:
    house = House(route())
    house.script(0, fate)
    with suppress(UpstreamFailed):
        await house.ask()

    assert house.ledger.own() == {}


async def test_request_that_is_given_up_leaves_nothing_behind() -> None:
    house = House(route(parallel=1))
    replica = house.script(0, "wait")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.ask)
        tasks.start_soon(house.ask)
        await wait_until(lambda: replica.served == 1 and house.waiting == 1)
        tasks.cancel_scope.cancel()

    assert house.ledger.own() == {}
    assert house.waiting == 0
    assert (await house.ask())[0].body == b"done"


async def test_place_in_the_line_is_kept_when_somebody_who_has_just_come_is_quicker() -> None:
    house = House(route(parallel=1))
    replica = house.script(0, "wait")
    done: list[int] = []

    async def ask(number: int) -> None:
        await house.ask()
        done.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(ask, number)
            await wait_until(lambda number=number: replica.served + house.waiting == number + 1)  # type: ignore[misc]
        barging = route(parallel=1)
        replica.gate.set()
        await wait_until(lambda: not house.ledger.own())  # The first has gone, and called the second.
        house.ledger.begin(barging)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        house.ledger.end(barging)

    assert done == [0, 1, 2]


async def test_seat_that_another_frontend_gave_up_is_taken_by_those_who_wait() -> None:
    house = House(route(parallel=1))
    house.ledger.set_elsewhere({route().key: 1})
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(house.ask)
        await wait_until(lambda: house.waiting == 3)
        house.ledger.set_elsewhere({})

    assert house.script(0).served == 3
    assert house.waiting == 0


async def test_seat_that_nobody_takes_in_time_is_the_next_ones() -> None:
    house = House(route(parallel=1), waits=WaitLimits(seat_s=0.05))
    replica = house.script(0, "wait")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.ask)
        await wait_until(lambda: replica.served == 1)
        with pytest.raises(Overloaded, match="was busy"):
            await house.ask()
        replica.gate.set()

    assert house.waiting == 0
    assert (await house.ask())[0].body == b"done"


async def test_more_than_may_wait_for_a_load_are_told_at_once_how_far_it_is() -> None:
    house = House(waits=WaitLimits(waiting_max=1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.ask)
        await wait_until(lambda: house.waiting == 1)
        with pytest.raises(ModelLoading):
            await house.ask()
        house.show([route()])

    assert house.waiting == 0


async def test_model_that_is_removed_is_unknown_to_those_who_wait_for_it() -> None:
    house = House(waits=WaitLimits(load_s=None))
    house.loads.on_bring = lambda: house.tables.replace(Table())
    with pytest.raises(ModelUnknown, match="removed"):
        await house.ask()


async def test_request_that_waited_is_served_as_the_model_is_configured_by_then() -> None:
    house = House()
    changed = MODEL.model_copy(update={"context_size": 64})
    house.loads.on_bring = lambda: house.show([route()], changed)
    await house.ask()

    assert house.script(0).configs == [changed]


async def test_a_burst_of_one_key_does_not_keep_the_single_request_of_another() -> None:
    house, ended = House(route(parallel=1)), list[str]()
    holding = house.script(0, "wait")

    async def ask(claim: SeatClaim) -> None:
        await house.ask(claim=claim)
        ended.append(claim.key)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, SeatClaim("first"))
        await wait_until(lambda: holding.served == 1)
        for _ in range(500):
            tasks.start_soon(ask, SeatClaim("burst"))
        await wait_until(lambda: house.waiting == 500)
        tasks.start_soon(ask, SeatClaim("batch", batch=True))
        await wait_until(lambda: house.waiting == 501)
        tasks.start_soon(ask, SeatClaim("single"))
        await wait_until(lambda: house.waiting == 502)
        holding.gate.set()
    assert len(ended) == 503
    assert ended.index("single") <= 3
    assert ended[-1] == "batch"
    assert house.ledger.own() == {}


async def test_batch_class_leaves_a_seat_to_others() -> None:
    house = House(route(parallel=2))
    replica = house.script(0, "wait", "wait")
    batch = SeatClaim("b", batch=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: house.ask(claim=batch))
        await wait_until(lambda: replica.served == 1)
        tasks.start_soon(lambda: house.ask(claim=batch))
        await wait_until(lambda: house.waiting == 1)
        tasks.start_soon(house.ask)
        await wait_until(lambda: replica.served == 2)
        assert house.waiting == 1
        replica.gate.set()
