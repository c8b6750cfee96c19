"""However many ask, and of however many frontends, one load is under way; and how it ended is told to all."""

from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest

from remuda.core.errors import Problem
from remuda.ops.model import Kind, State, Wish
from remuda.ops.ports import Filter
from remuda.scheduler.demand import Demand, DemandAnswer, Failed, GivenUp, NoRoomYet, UnderWay
from remuda.scheduler.model import Replica, ReplicaState, Unplaceable
from remuda.scheduler.ranking import NodeWishes
from tests.support.op_builders import an_operation, end, submitted
from tests.support.virtual_ops import time_passes
from tests.unit.scheduler.placers import DemandRig
from tests.unit.scheduler.rig import GB, NODE, OTHER_NODE, a_model

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig() -> AsyncIterator[DemandRig]:
    async with DemandRig.running() as made:
        yield made


async def all_at_once(*asked: tuple[Demand, str]) -> list[DemandAnswer]:
    answers: list[DemandAnswer] = []

    async def ask(demand: Demand, name: str) -> None:
        answers.append(await demand.look(name))

    async with anyio.create_task_group() as tasks:
        for demand, name in asked:
            tasks.start_soon(ask, demand, name)
    return answers


async def loads(rig: DemandRig) -> int:
    views = await rig.operations.views(Filter())
    return sum(view.operation.kind is Kind.LOAD for view in views)


async def failed(
    rig: DemandRig, replica: Replica, why: str = "unknown architecture", code: str = "backend_failed"
) -> None:
    """Its load ends so, and its row is gone."""
    [step] = (await rig.operations.view(replica.op)).steps
    await rig.over(step, State.FAILED, Problem(code, why, hint="use another file"))
    assert await rig.replicas.remove(replica)


async def cancelled(rig: DemandRig, replica: Replica) -> None:
    [step] = (await rig.operations.view(replica.op)).steps
    await rig.over(step, State.CANCELLED)
    assert await rig.replicas.remove(replica)


# One load.


async def test_six_who_ask_at_once_cause_one_load(rig: DemandRig) -> None:
    answers = await all_at_once(*[(rig.demand, "qwen")] * 6)
    assert [type(answer) for answer in answers] == [UnderWay] * 6
    assert (rig.placer.asked, await loads(rig)) == (["qwen"], 1)


async def test_load_is_where_all_who_wait_for_it_would_have_it(rig: DemandRig) -> None:
    names = [machine.name for machine in rig.machines]
    asked = [NodeWishes(frozenset({names[1], "x=y"}), frozenset({"a=b"})), NodeWishes(frozenset({names[1]}))]
    async with anyio.create_task_group() as tasks:
        for one in asked:
            tasks.start_soon(rig.demand.look, "qwen", None, one)
    assert rig.placer.wishes == [NodeWishes(frozenset({names[1]}))]
    [row] = await rig.rows()
    assert row.node == OTHER_NODE


async def test_six_who_ask_three_frontends_cause_one_load(rig: DemandRig) -> None:
    frontends = [await rig.of_a_frontend() for _ in range(3)]
    await all_at_once(*[(one, "qwen") for one in frontends * 2])
    assert (await loads(rig), len(await rig.rows())) == (1, 1)
    for one in frontends:
        assert isinstance(await one.look("qwen"), UnderWay), "who came too late sees it at the next look"


async def test_replica_that_gets_ready_during_a_look_is_not_joined_by_another(rig: DemandRig) -> None:
    """Just after the table was read, which does not know it yet."""
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)

    async def ready() -> None:
        await rig.replicas.move(begun.replica, replace(begun.replica, state=ReplicaState.LOADED))

    rig.after_refresh = ready
    await time_passes(1)
    assert isinstance(await rig.demand.look("qwen"), UnderWay)
    assert await loads(rig) == 1


async def test_two_models_are_loaded_independently(rig: DemandRig) -> None:
    await rig.configure(a_model("other"))
    for machine in rig.machines:
        machine.files["other.gguf"] = GB
    await all_at_once((rig.demand, "qwen"), (rig.demand, "other"))
    for name in ("qwen", "other"):
        await rig.demand.look(name)
    assert await loads(rig) == 2


async def test_model_with_a_route_needs_nothing(rig: DemandRig) -> None:
    rig.with_route.add("qwen")
    assert await rig.demand.look("qwen") is None
    assert rig.placer.asked == []
    assert rig.refreshed == 1, "the table is read anew before anything is begun"


async def test_model_that_was_removed_is_not_loaded(rig: DemandRig) -> None:
    assert await rig.demand.look("nobody") is None
    assert rig.placer.asked == []


async def test_those_who_wait_share_one_look_a_second(rig: DemandRig) -> None:
    await rig.demand.look("qwen")
    looked = rig.refreshed
    for _ in range(20):
        await all_at_once(*[(rig.demand, "qwen")] * 5)
        await time_passes(0.1)
    assert rig.refreshed - looked <= 3


async def test_look_tells_how_far_the_operation_is(rig: DemandRig) -> None:
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    assert begun.view is None, "it has just been made"
    await time_passes(2)
    later = await rig.demand.look("qwen")
    assert isinstance(later, UnderWay)
    assert later.view is not None
    assert later.view.operation.id == begun.replica.op


async def test_load_under_way_is_found_without_beginning_one(rig: DemandRig) -> None:
    assert await rig.demand.under_way("qwen") is None
    assert rig.placer.asked == []
    await rig.demand.look("qwen")
    found = await rig.demand.under_way("qwen")
    assert found is not None
    assert found.view is not None


# Failed.


async def test_failed_load_answers_with_its_cause_for_fifteen_seconds(rig: DemandRig) -> None:
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    await failed(rig, begun.replica)
    await time_passes(1)
    for _ in range(13):
        answer = await rig.demand.look("qwen")
        assert isinstance(answer, Failed)
        assert (answer.problem.message, answer.node) == ("unknown architecture", "gpu-1")
        await time_passes(1)
    await time_passes(3)
    assert isinstance(await rig.demand.look("qwen"), UnderWay), "then it is tried again"
    assert await loads(rig) == 2


async def test_another_frontend_tells_the_same_cause(rig: DemandRig) -> None:
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    await failed(rig, begun.replica)
    answer = await (await rig.of_a_frontend()).look("qwen")
    assert isinstance(answer, Failed)
    assert answer.problem.hint == "use another file"


async def test_changed_model_is_tried_at_once_though_the_former_failed(rig: DemandRig) -> None:
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    await failed(rig, begun.replica)
    await rig.configure(a_model("qwen", "context_size: 512\n"))
    await time_passes(1)
    assert isinstance(await rig.demand.look("qwen"), UnderWay)


async def test_failure_of_another_model_is_not_ours(rig: DemandRig) -> None:
    await rig.configure(a_model("other"))
    for machine in rig.machines:
        machine.files["other.gguf"] = GB
    begun = await rig.demand.look("other")
    assert isinstance(begun, UnderWay)
    await failed(rig, begun.replica)
    assert isinstance(await rig.demand.look("qwen"), UnderWay)


async def test_failures_of_others_hide_ours_not_however_many_they_are(
    rig: DemandRig,
) -> None:
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    await failed(rig, begun.replica)
    for number in range(30):
        await submitted(rig.operations, an_operation(f"other-{number}", Kind.LOAD), [f"gone-{number}"])
        await end(rig.operations, f"other-{number}", State.FAILED)
    await time_passes(1)
    assert isinstance(await rig.demand.look("qwen"), Failed)


async def test_load_that_has_just_failed_can_be_asked_about_without_beginning_another(rig: DemandRig) -> None:
    assert await rig.demand.failed("qwen") is None
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    await failed(rig, begun.replica)
    told = await rig.demand.failed("qwen")
    assert told is not None
    assert (told.problem.message, told.node) == ("unknown architecture", "gpu-1")
    await time_passes(16)
    assert await rig.demand.failed("qwen") is None
    assert await loads(rig) == 1


async def test_load_that_was_cancelled_is_no_failure(rig: DemandRig) -> None:
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    await cancelled(rig, begun.replica)
    await time_passes(1)
    assert isinstance(await rig.demand.look("qwen"), UnderWay)


async def test_node_that_could_not_be_reached_is_avoided_for_a_while(rig: DemandRig) -> None:
    first = await rig.demand.look("qwen")
    assert isinstance(first, UnderWay)
    await failed(rig, first.replica, "it went away", code="node_unreachable")
    await time_passes(1)
    second = await rig.demand.look("qwen")
    assert isinstance(second, UnderWay)
    assert second.replica.node != first.replica.node
    await failed(rig, second.replica, "it went away, too", code="node_unreachable")
    await time_passes(1)
    assert isinstance(await rig.demand.look("qwen"), NoRoomYet), "for either may be back"
    await time_passes(20)
    assert isinstance(await rig.demand.look("qwen"), UnderWay)


async def test_node_that_this_frontend_cannot_reach_is_avoided(rig: DemandRig) -> None:
    rig.out_of_reach = {NODE: "it could not be reached a moment ago"}
    found = await rig.demand.look("qwen")
    assert isinstance(found, UnderWay)
    assert found.replica.node == OTHER_NODE


# Given up.


async def test_load_that_people_give_up_is_told_to_those_who_waited_on_every_frontend(rig: DemandRig) -> None:
    other = await rig.of_a_frontend()
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    op = begun.replica.op
    await rig.unload(begun.replica)
    await time_passes(1)
    for frontend in (rig.demand, other):
        assert isinstance(await frontend.look("qwen", op), GivenUp), "its row is still there"
    await cancelled(rig, begun.replica)
    await time_passes(1)
    for frontend in (rig.demand, other):
        assert isinstance(await frontend.look("qwen", op), GivenUp)
    assert (await rig.rows(), rig.placer.asked) == ((), ["qwen"])


async def test_operation_that_people_cancel_is_given_up_as_well(rig: DemandRig) -> None:
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    await rig.operations.wish(begun.replica.op, Wish.CANCEL)
    await time_passes(1)
    assert isinstance(await rig.demand.look("qwen", begun.replica.op), GivenUp)


async def test_who_comes_after_a_load_was_given_up_begins_another(rig: DemandRig) -> None:
    other = await rig.of_a_frontend()
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    await rig.unload(begun.replica)
    await cancelled(rig, begun.replica)
    await time_passes(1)
    anew = await other.look("qwen")
    assert isinstance(anew, UnderWay)
    assert anew.replica.op != begun.replica.op
    assert isinstance(await rig.demand.look("qwen", begun.replica.op), UnderWay), "who waits on has it, too"


async def test_load_that_upkeep_gives_up_is_begun_anew_for_those_who_wait(rig: DemandRig) -> None:
    begun = await rig.demand.look("qwen")
    assert isinstance(begun, UnderWay)
    await rig.configure(a_model("qwen", "context_size: 512\n"))
    await rig.unload(begun.replica)
    await cancelled(rig, begun.replica)
    await time_passes(1)
    assert isinstance(await rig.demand.look("qwen", begun.replica.op), UnderWay)
    assert await loads(rig) == 2


# Nowhere.


async def test_model_that_fits_nowhere_is_refused_with_reasons(rig: DemandRig) -> None:
    for machine in rig.machines:
        machine.files = {}
    answer = await rig.demand.look("qwen")
    assert isinstance(answer, Unplaceable)
    assert answer.reasons.keys() == {"gpu-1", "gpu-2"}


async def test_model_that_only_has_to_wait_waits(rig: DemandRig) -> None:
    await rig.configure(a_model("big"))
    rig.machines.pop(1)
    rig.machine.files["big.gguf"] = 50 * GB
    old = await rig.loaded()
    rig.machine.used_gb = 4
    await time_passes(30)
    rig.busy[old.key] = 1
    assert isinstance(await rig.demand.look("big"), NoRoomYet)
    rig.busy.clear()
    await time_passes(1)
    assert isinstance(await rig.demand.look("big"), UnderWay)


# Those who leave.


async def test_requests_whose_clients_leave_at_once_still_bring_the_model_up(rig: DemandRig) -> None:
    """Eviction included: what leaves was marked by the claim, and is asked to go right after it."""
    await rig.configure(a_model("big"))
    rig.machines.pop(1)
    rig.machine.files["big.gguf"] = 50 * GB
    old = await rig.loaded()
    rig.machine.used_gb = 4
    await time_passes(30)
    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            tasks.start_soon(rig.demand.look, "big")
        await time_passes(0.1)
        tasks.cancel_scope.cancel()
    await time_passes(0.5)

    kinds = [view.operation.kind for view in await rig.operations.views(Filter(finished=False))]
    assert sorted(kinds) == [Kind.LOAD, Kind.UNLOAD]
    assert {row.key.model: row.state for row in await rig.rows()} == {
        "big": ReplicaState.STAGING,
        old.key.model: ReplicaState.UNLOADING,
    }
