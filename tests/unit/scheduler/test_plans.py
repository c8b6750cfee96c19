"""What a load would do, and how long it would take, as far as that was measured."""

from hypothesis import given

from remuda.core.ids import NodeId
from remuda.scheduler.measured_speed import Expected, MeasuredRate, Rate, RateBook, RateKey, Took
from remuda.scheduler.model import Need, NodeOffer
from remuda.scheduler.placement import place
from remuda.scheduler.plans import PlannedAction, PlannedStep, replica_plan
from tests.unit.scheduler.offering import GB, a_need, a_resident, an_offer
from tests.unit.scheduler.test_placement_properties import fleets, needs


def book(**per_s: float) -> RateBook:
    """Of gpu-1 and the model `other`."""
    kinds = {
        "copies": Rate.COPY,
        "loads": Rate.LOAD,
        "tokens": Rate.TOKENS,
        "unloads": Rate.UNLOAD,
        "installs": Rate.INSTALL,
    }
    return RateBook.of(
        MeasuredRate(RateKey(kinds[kind], NodeId("id-gpu-1"), "other"), rate, "llama-cpp", 8 * GB)
        for kind, rate in per_s.items()
    )


NEED = a_need(weights_bytes=4 * GB)


def test_steps_stand_in_the_order_in_which_they_are_done() -> None:
    offer = an_offer(
        "gpu-1",
        a_resident("old", 20),
        free_gb=4,
        has_file=False,
        copied_from="attic",
        copied_bytes=4 * GB,
        has_backend=False,
    )
    plan = replica_plan(NEED, [offer], book(copies=GB / 10, loads=2 * GB))
    assert plan.node == "gpu-1"
    assert plan.steps == (
        PlannedStep(PlannedAction.UNLOAD, "old#0"),
        PlannedStep(PlannedAction.COPY, "attic", 4 * GB, GB / 10),
        PlannedStep(PlannedAction.INSTALL, "llama-cpp"),
        PlannedStep(PlannedAction.LOAD, "qwen", 4 * GB, 2 * GB),
    )
    assert plan.ready_s is None
    assert plan.known_s == 42


def test_where_all_was_measured_the_time_is_told() -> None:
    plan = replica_plan(NEED, [an_offer()], book(loads=GB, tokens=25))
    assert plan.ready_s == 4
    assert plan.speed == Expected(50, "other")


def test_unloads_and_an_install_take_what_they_took_before() -> None:
    offer = an_offer("gpu-1", a_resident("old", 10), a_resident("older", 9), free_gb=0, has_backend=False)
    need = a_need(weights_bytes=4 * GB, memory_bytes=18 * GB)
    plan = replica_plan(need, [offer], book(loads=GB, unloads=0.5, installs=0.05))
    assert [step.took for step in plan.steps] == [Took(2), Took(2), Took(20), None]
    assert plan.ready_s == 2 + 20 + 4, "replicas are unloaded at the same time"


def test_an_install_that_was_never_made_there_takes_what_it_took_elsewhere() -> None:
    installs = [
        MeasuredRate(RateKey(Rate.INSTALL, NodeId(f"id-{name}"), "other"), 1 / took_s, backend)
        for name, took_s, backend in (("a", 10, "llama-cpp"), ("b", 40, "llama-cpp"), ("gpu-1", 5, "vllm"))
    ]
    speeds = RateBook.of(installs)
    assert speeds.install_s(NodeId("id-gpu-1"), "llama-cpp") == Took(25, elsewhere=True)
    assert speeds.install_s(NodeId("id-gpu-1"), "vllm") == Took(5)
    assert speeds.install_s(NodeId("id-gpu-1"), "whisper") is None


def test_what_was_not_measured_is_not_guessed() -> None:
    plan = replica_plan(NEED, [an_offer()], RateBook())
    assert (plan.ready_s, plan.known_s, plan.speed) == (None, 0, None)
    assert replica_plan(a_need(), [an_offer()], book(loads=GB)).ready_s is None  # Its size is not known.


def test_a_model_that_no_node_can_take_has_reasons_and_no_steps() -> None:
    plan = replica_plan(NEED, [an_offer(unfit="it is drained")], RateBook())
    assert (plan.node, plan.steps, plan.others) == ("", (), {"gpu-1": "it is drained"})


@given(needs, fleets)
def test_a_plan_is_what_placement_would_do(need: Need, fleet: list[NodeOffer]) -> None:
    plan = replica_plan(need, fleet, RateBook())
    assert plan.placed == place(need, fleet)
    assert bool(plan.node) == bool(plan.steps)
