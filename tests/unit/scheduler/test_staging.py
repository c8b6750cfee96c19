"""Which files a node lacks, who gives them, and where a model goes that has to be copied first."""

from dataclasses import replace

import pytest

from remuda.core.ids import NodeId
from remuda.fleet.verdicts import ObservedNode
from remuda.models.files import NeededFile
from remuda.scheduler.model import Need, Placed, Unplaceable
from remuda.scheduler.placement import place
from remuda.scheduler.staging import NOTHING_TO_COPY, CopyPlan, copy_plan, givers
from remuda.wire.nodes import CutOffFile, ModelFile, Report
from tests.unit.scheduler.offering import an_offer
from tests.unit.scheduler.standing import a_view

GB = 1 << 30
FILES = (NeededFile("q.gguf", 4 * GB), NeededFile("mmproj.gguf", GB))
NEED = Need("qwen", "llama-cpp", "r1", file="q.gguf")


def a_node(name: str, *files: tuple[str, int], fetches: bool = True, cut_off: str = "") -> ObservedNode:
    view = a_view()
    node = replace(view.standing.node, id=NodeId(name), name=name, http_address=f"{name}:50050")
    report = Report(
        model_files=tuple(ModelFile(path=path, size=size) for path, size in files),
        model_files_cut_off=(CutOffFile(path=cut_off, size=1, missing=1),) if cut_off else (),
        fetches_files=fetches,
    )
    return replace(view, standing=replace(view.standing, node=node), report=report)


WHOLE = (("q.gguf", 4 * GB), ("mmproj.gguf", GB))


@pytest.mark.parametrize(
    ("node", "plan"),
    [
        (a_node("a"), CopyPlan(5 * GB, "this frontend")),
        (a_node("a", *WHOLE[:1]), CopyPlan(GB, "this frontend")),
        (a_node("a", *WHOLE), NOTHING_TO_COPY),
        (a_node("a", fetches=False), None),
    ],
)
def test_what_a_node_lacks_is_copied_from_the_frontend(node: ObservedNode, plan: CopyPlan | None) -> None:
    assert copy_plan(FILES, node, [node]) == plan


def test_another_node_that_has_it_comes_before_the_frontend() -> None:
    lacks, has = a_node("a"), a_node("b", *WHOLE)
    assert copy_plan(FILES, lacks, [lacks, has]) == CopyPlan(5 * GB, "b")


def test_what_nobody_has_cannot_be_copied() -> None:
    node = a_node("a")
    elsewhere = [replace(file, here=False) for file in FILES]
    assert copy_plan(elsewhere, node, [node]) is None
    assert copy_plan((), node, [node]) is None


def test_file_that_is_another_or_incomplete_there_is_not_replaced() -> None:
    other, half = a_node("a", ("q.gguf", 7)), a_node("b", cut_off="q.gguf")
    differs = copy_plan(FILES, other, [other])
    assert differs is not None
    assert "q.gguf there is another file" in differs.differs
    incomplete = copy_plan(FILES, half, [half])
    assert incomplete is not None
    assert "incomplete" in incomplete.differs


def test_givers_have_the_same_file_and_do_not_all_begin_with_the_same() -> None:
    nodes = [a_node("a"), a_node("b", *WHOLE), a_node("c", ("q.gguf", 1)), a_node("d", *WHOLE)]
    assert [node.name for node in givers(FILES[0], nodes, nodes[0].standing.node)] == ["b", "d"]
    assert [node.name for node in givers(FILES[0], nodes, nodes[2].standing.node)] == ["d", "b"]
    assert [node.name for node in givers(FILES[0], nodes, nodes[1].standing.node)] == ["d"]


# Placement.


def test_node_that_has_the_files_comes_before_one_that_they_are_copied_to() -> None:
    small = an_offer("has-it", free_gb=9)
    large = an_offer("empty", has_file=False, copied_bytes=4 * GB, copied_from="has-it")
    placed = place(NEED, [large, small])
    assert isinstance(placed, Placed)
    assert (placed.node, placed.copied) == (small.node, "")


def test_node_without_the_files_takes_it_where_they_can_be_copied() -> None:
    lone = an_offer("empty", has_file=False, copied_bytes=4 * GB, copied_from="this frontend")
    placed = place(NEED, [lone])
    assert isinstance(placed, Placed)
    assert placed.copied == "4.0 GiB from this frontend"


def test_disk_without_room_for_the_files_is_refused_with_its_numbers() -> None:
    full = an_offer(
        "full", has_file=False, copied_bytes=4 * GB, copied_from="b", disk_known=True, disk_free=3 * GB
    )
    refused = place(NEED, [full])
    assert isinstance(refused, Unplaceable)
    why = refused.reasons["full"]
    assert "need 5.0 GiB of disk, of which 1.0 GiB stays free; 3.0 GiB free" in why
    unknown = replace(full, disk_known=False)
    assert isinstance(place(NEED, [unknown]), Placed)


def test_node_with_another_file_of_that_name_is_refused() -> None:
    refused = place(NEED, [an_offer("other", has_file=False, differs="q.gguf there is another file")])
    assert isinstance(refused, Unplaceable)
    assert refused.reasons == {"other": "q.gguf there is another file"}
