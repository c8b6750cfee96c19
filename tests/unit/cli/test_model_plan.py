"""A plan, as people read it."""

from remuda.cli.model_plan import plan_lines
from remuda.wire.serving import ModelPlan, NotChosenView, PlannedStepView

GIB = 1 << 30
UNLOAD = PlannedStepView(action="unload", what="phi#0")
COPY = PlannedStepView(action="copy", what="attic", size_bytes=4 * GIB, bytes_per_s=GIB / 10, seconds=40)
LOAD = PlannedStepView(action="load", what="qwen", size_bytes=4 * GIB, bytes_per_s=GIB, seconds=4)


def test_plan_with_steps_that_were_not_all_measured() -> None:
    plan = ModelPlan(
        model="qwen",
        node="gpu-1",
        in_vram=True,
        memory_bytes=6 * GIB,
        steps=(UNLOAD, COPY, LOAD),
        known_seconds=44,
        tokens_per_s=57.6,
        tokens_like="phi",
        not_chosen=(NotChosenView(nodes=("a", "b"), why="it is drained"),),
    )
    assert list(plan_lines(plan)) == [
        "a replica of qwen would be loaded on gpu-1, into 6.0 GiB of VRAM",
        "  1. unload phi, replica 0 (how long is not known)",
        "  2. copy 4.0 GiB from attic (about 40s at 102 MiB/s)",
        "  3. load the model, 4.0 GiB (about 4s at 1.0 GiB/s)",
        "  ready in 44s plus the steps whose time is not known yet",
        "  speed: about 58 tokens a second, estimated from phi on that node",
        "not chosen:",
        "  a, b: it is drained",
    ]


def test_steps_that_were_done_before_say_where() -> None:
    there = UNLOAD.model_copy(update={"seconds": 2})
    elsewhere = PlannedStepView(action="install", what="llama-cpp", seconds=25, measured_elsewhere=True)
    lines = list(plan_lines(ModelPlan(model="qwen", node="gpu-1", steps=(there, elsewhere))))
    assert lines[1:3] == [
        "  1. unload phi, replica 0 (about 2s, as it took before on this node)",
        "  2. install the backend llama-cpp (about 25s, as it took on other nodes)",
    ]


def test_plan_of_which_nothing_was_measured_says_so() -> None:
    lines = list(plan_lines(ModelPlan(model="qwen", node="gpu-1", steps=(UNLOAD,))))
    assert lines[-2:] == [
        "  ready after a time that is not known: none of this was done on that node before",
        "  speed: not measured on that node yet",
    ]


def test_model_that_no_node_can_take_now() -> None:
    reason = NotChosenView(nodes=tuple(f"n{number}" for number in range(10)), why="it is busy")
    waits = "on n0 once b has answered its requests"
    plan = ModelPlan(model="qwen", waiting_helps=True, waits_for=waits, not_chosen=(reason,))
    lines = list(plan_lines(plan))
    assert lines == [
        "qwen: no node can take a replica of it now; one could be loaded on n0 once b has answered its "
        "requests",
        "why not:",
        "  n0, n1, n2, n3, n4, n5, n6, n7 and 2 more: it is busy",
    ]
