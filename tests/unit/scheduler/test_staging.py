"""Which files a node lacks, who gives them, and where a model goes that has to be copied first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import NodeId
from remuda.fleet.verdicts import ObservedNode
from remuda.models.files import NeededFile
from remuda.scheduler.model import FilesTold, Need, Placed, Unplaceable
from remuda.scheduler.placement import place
from remuda.scheduler.staging import NOTHING_TO_COPY, CopyPlan, GiversByFile, copy_plan, givers, taken_words
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


def test_another_file_that_the_worker_has_fetched_is_copied_anew() -> None:
    """Only what a person has put there is left alone."""
    node = a_node("a")
    assert node.report is not None
    outdated = node.report.model_copy(
        update={"model_files": (ModelFile(path="q.gguf", size=7, brought=True),)}
    )
    assert copy_plan(FILES[:1], replace(node, report=outdated), [node]) == CopyPlan(4 * GB, "this frontend")


@pytest.mark.parametrize(("brought", "size"), [(True, GB), (False, 5 * GB)])
def test_content_that_the_worker_has_fetched_under_another_name_does_not_travel(
    brought: bool, size: int
) -> None:
    node = a_node("a")
    assert node.report is not None
    same = ModelFile(path="other.gguf", size=4 * GB, sha256="ab" * 32, brought=brought)
    has = replace(node, report=node.report.model_copy(update={"model_files": (same,)}))
    wanted = (replace(FILES[0], sha256="ab" * 32), FILES[1])
    assert copy_plan(wanted, has, [has]) == CopyPlan(size, "this frontend")


def test_file_of_another_content_is_not_given() -> None:
    giver, taker = a_node("a", ("q.gguf", 4 * GB)), a_node("b")
    assert giver.report is not None
    told = giver.report.model_copy(
        update={"model_files": (ModelFile(path="q.gguf", size=4 * GB, sha256="ab" * 32),)}
    )
    giver = replace(giver, report=told)
    wanted = replace(FILES[0], sha256="cd" * 32)
    assert givers(wanted, [giver, taker], taker.standing.node) == []
    assert givers(replace(wanted, sha256="ab" * 32), [giver, taker], taker.standing.node) != []


def test_givers_have_the_same_file_and_do_not_all_begin_with_the_same() -> None:
    nodes = [a_node("a"), a_node("b", *WHOLE), a_node("c", ("q.gguf", 1)), a_node("d", *WHOLE)]
    assert [one.node.name for one in givers(FILES[0], nodes, nodes[0].standing.node)] == ["b", "d"]
    assert [one.node.name for one in givers(FILES[0], nodes, nodes[2].standing.node)] == ["d", "b"]
    assert [one.node.name for one in givers(FILES[0], nodes, nodes[1].standing.node)] == ["d"]


@given(st.frozensets(st.sampled_from("abcdef")), st.sampled_from("abcdef"))
def test_first_giver_is_the_same_where_it_is_found_for_all_nodes_at_once(
    having: frozenset[str], receiver: str
) -> None:
    nodes = [a_node(name, *(WHOLE if name in having else ())) for name in "fedcba"]
    node = next(view.standing.node for view in nodes if view.standing.node.name == receiver)
    giving = givers(FILES[0], nodes, node)
    assert GiversByFile(nodes).of(FILES[0], node) == (giving[0].node if giving else None)
    assert GiversByFile(nodes).any_of(FILES[0]) is bool(having)


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
    full = an_offer("full", has_file=False, copied_bytes=4 * GB, copied_from="b", no_room="needs 5 GiB")
    refused = place(NEED, [full])
    assert isinstance(refused, Unplaceable)
    assert refused.reasons == {"full": "needs 5 GiB"}
    has_it = replace(full, has_file=True, copied_from="", copied_bytes=0)
    assert isinstance(place(NEED, [has_it]), Placed)


def test_node_where_nothing_has_to_go_comes_before_one_that_drops_other_models() -> None:
    drops = an_offer("drops", has_file=False, copied_bytes=GB, copied_from="b", dropped_bytes=GB)
    empty = replace(an_offer("empty", free_gb=9), has_file=False, copied_bytes=GB, copied_from="b")
    placed = place(NEED, [drops, empty])
    assert isinstance(placed, Placed)
    assert placed.node == empty.node
    assert isinstance(place(NEED, [drops]), Placed)


def test_node_whose_worker_is_too_old_to_fetch_is_named_with_what_helps() -> None:
    old = an_offer("old", has_file=False, files_told=FilesTold.CANNOT_FETCH, models_path="/srv/models")
    refused = place(NEED, [old])
    assert isinstance(refused, Unplaceable)
    assert refused.reasons == {
        "old": "it does not have q.gguf, and its worker is of a release that fetches no model files; update "
        "its worker, or put them into its models folder /srv/models"
    }


def test_node_with_another_file_of_that_name_is_refused() -> None:
    refused = place(NEED, [an_offer("other", has_file=False, differs="q.gguf there is another file")])
    assert isinstance(refused, Unplaceable)
    assert refused.reasons == {"other": "q.gguf there is another file"}


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ({}, ""),
        ({"attic": 0}, ""),
        (
            {"attic": 2 << 20, "object storage": 5 << 20},
            "5.0 MiB came from object storage, 2.0 MiB from attic",
        ),
        (
            dict.fromkeys("abcdef", 1 << 20),
            ", ".join(
                ["1.0 MiB came from a", *(f"1.0 MiB from {one}" for one in "bcd"), "2.0 MiB from others"]
            ),
        ),
    ],
)
def test_where_bytes_came_from_is_told_in_words(taken: dict[str, int], words: str) -> None:
    assert taken_words(taken) == words


def test_bytes_that_had_come_before_are_told_by_themselves() -> None:
    assert taken_words({"attic": 1 << 20}, 2 << 20) == "1.0 MiB came from attic; 2.0 MiB had come before"
    assert taken_words({}, 2 << 20) == "2.0 MiB had come before"
