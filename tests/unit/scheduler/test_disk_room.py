"""Which model files leave a node to make room: what never goes, what goes first, and what is said when there
is no room."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.ids import NodeId
from remuda.fleet.verdicts import ObservedNode
from remuda.models.files import NeededFile
from remuda.scheduler.disk_room import (
    LAST_COPY,
    NOT_DROPPED,
    ONE_STAYS,
    PERSONS,
    DropPlan,
    FileOnNode,
    Lack,
    NodeDisk,
    NoRoom,
    PartOnNode,
    disk_of,
    files_budget,
    files_in_fleet,
    freed,
    freed_by_hand,
    room_for,
)
from remuda.scheduler.model import Replica, ReplicaState
from remuda.scheduler.staging import arrived
from remuda.wire.nodes import ArrivedFile, ModelFile, Report, RunningReplica
from tests.support.examples import examples
from tests.unit.scheduler.standing import a_row, a_view

GB = 1 << 30
MODELS = ("a", "b", "c", "d")


def held(path: str, gb: int, *models: str, used: int = 1, keep: str = "", sha256: str = "") -> FileOnNode:
    return FileOnNode(path, gb * GB, sha256 or path, True, used, frozenset(models), keep)


def disk(*files: FileOnNode, free_gb: float | None = None, budget_gb: float | None = None) -> NodeDisk:
    fetched = bytes_of(file for file in files if file.brought)
    budget = None if budget_gb is None else int(budget_gb * GB)
    return NodeDisk("attic", files, fetched, budget, None if free_gb is None else int(free_gb * GB))


def dropped(plan: DropPlan | NoRoom) -> list[str]:
    assert isinstance(plan, DropPlan), plan
    return [file.path for file in plan.files]


# What holds of every disk.

some_files = st.lists(
    st.builds(
        FileOnNode,
        path=st.integers(0, 30).map(str),
        size=st.integers(0, 9).map(lambda gb: gb * GB),
        sha256=st.sampled_from(("x", "y", "z", "v", "w", "u", "t")),
        used_ms=st.integers(0, 5),
        models=st.frozensets(st.sampled_from(MODELS), max_size=3),
        inode=st.integers(0, 3),
        keep=st.sampled_from(("", "", "", "a is loaded", "b is pinned", LAST_COPY, PERSONS)),
    ),
    max_size=9,
    unique_by=lambda file: file.path,
).map(lambda files: [_whole(file) for file in files])


def _whole(file: FileOnNode) -> FileOnNode:
    """One content has one size; one file on the disk has one content."""
    place = "xyzvwut".index(file.sha256)
    inode = file.inode and 10 * file.inode + place
    return replace(file, size=place * GB, brought=file.keep != PERSONS, inode=inode)


disks = st.builds(
    lambda files, budget, free, coming: replace(
        disk(*files, budget_gb=budget, free_gb=free), coming_bytes=coming * GB
    ),
    some_files,
    st.none() | st.integers(0, 30),
    st.none() | st.integers(0, 30),
    st.integers(0, 3),
)
sizes = st.integers(0, 12).map(lambda gb: gb * GB)


def on_disk(node: NodeDisk, gone: set[str]) -> int:
    """Equal files may be one on the disk; a worker that tells inodes tells whether they are."""
    return bytes_of(file for file in node.files if file.path not in gone)


def fetched_left(node: NodeDisk, gone: set[str]) -> int:
    return bytes_of(file for file in node.files if file.path not in gone and file.brought)


def bytes_of(files: Iterable[FileOnNode]) -> int:
    return sum({file.inode or file.sha256: file.size for file in files}.values())


@settings(max_examples=examples(300))
@given(disks, sizes)
def test_nothing_goes_that_has_a_reason_to_stay(node: NodeDisk, needed: int) -> None:
    plan = room_for(needed, node)
    if isinstance(plan, DropPlan):
        assert not [file for file in plan.files if file.keep]
        assert len({file.path for file in plan.files}) == len(plan.files)


@settings(max_examples=examples(300))
@given(disks, sizes)
def test_enough_is_freed_or_it_is_refused_with_numbers(node: NodeDisk, needed: int) -> None:
    plan = room_for(needed, node)
    if isinstance(plan, NoRoom):
        assert "GiB" in plan.why or "MiB" in plan.why
        assert "budget" in plan.why or "make room" in plan.why
        return
    gone = {file.path for file in plan.files}
    assert not needed or has_room(node, needed, gone)


def has_room(node: NodeDisk, needed: int, gone: set[str]) -> bool:
    coming = needed + node.coming_bytes
    if node.budget_bytes is not None and fetched_left(node, gone) + coming > node.budget_bytes:
        return False
    freed_bytes = on_disk(node, set()) - on_disk(node, gone)
    return node.free_bytes is None or node.free_bytes + freed_bytes >= coming + max(needed // 20, GB)


@settings(max_examples=examples(300))
@given(disks, sizes)
def test_what_is_freed_makes_room_and_no_more_goes_than_is_needed(node: NodeDisk, needed: int) -> None:
    plan = room_for(needed, node)
    if not isinstance(plan, DropPlan):
        may_go = {file.path for file in node.files if not file.keep}
        assert not has_room(node, needed, may_go)
        return
    assert not needed or has_room(node, needed, {file.path for file in plan.files})
    for one in plan.drop:
        others = [other for other in plan.drop if other is not one]
        if not any(one.name in file.models for other in others for file in other.files):
            assert not has_room(node, needed, {file.path for other in others for file in other.files})


@settings(max_examples=examples(200))
@given(disks, sizes, st.data())
def test_order_of_the_files_makes_no_difference(node: NodeDisk, needed: int, data: st.DataObject) -> None:
    files = tuple(data.draw(st.permutations(node.files)))
    assert room_for(needed, replace(node, files=files)) == room_for(needed, node)


@settings(max_examples=examples(200))
@given(disks, sizes)
def test_no_model_goes_if_those_that_were_not_used_for_longer_were_enough(
    node: NodeDisk, needed: int
) -> None:
    plan = room_for(needed, node)
    if not isinstance(plan, DropPlan) or not any(one.name for one in plan.drop):
        return
    latest = max(_used(node, one.name) for one in plan.drop if one.name)
    older = {
        file.path
        for file in node.files
        if not file.keep and file.models and all(_used(node, model) < latest for model in file.models)
    }
    assert not has_room(node, needed, older)


def _used(node: NodeDisk, model: str) -> int:
    return min(file.used_ms for file in node.files if model in file.models)


@settings(max_examples=examples(200))
@given(disks, sizes)
def test_what_goes_last_is_needed(node: NodeDisk, needed: int) -> None:
    plan = room_for(needed, node)
    if not isinstance(plan, DropPlan) or not plan.drop:
        return
    gone = {file.path for one in plan.drop[:-1] for file in one.files}
    assert not has_room(node, needed, gone)


@settings(max_examples=examples(200))
@given(disks, sizes)
def test_a_file_of_two_models_goes_with_the_second(node: NodeDisk, needed: int) -> None:
    plan = room_for(needed, node)
    if not isinstance(plan, DropPlan):
        return
    gone: set[str] = set()
    considered = sorted(
        (min(file.used_ms for file in node.files if model in file.models), model)
        for model in MODELS
        if any(model in file.models for file in node.files)
    )
    order = [model for _, model in considered]
    for one in plan.drop:
        if one.name:
            gone |= set(order[: order.index(one.name) + 1])
            assert all(file.models <= gone for file in one.files)


# Examples.


def test_what_was_not_used_longest_goes_first_and_no_more_than_is_needed() -> None:
    node = disk(
        held("new", 4, "a", used=9), held("old", 4, "b", used=1), held("mid", 4, "c", used=5), free_gb=2
    )
    assert dropped(room_for(4 * GB, node)) == ["old"]
    assert dropped(room_for(6 * GB, node)) == ["old", "mid"]
    assert dropped(room_for(1 * GB, node)) == []


def test_file_of_two_models_is_counted_once_and_goes_with_the_later() -> None:
    shared = held("mmproj", 2, "a", "b", used=7)
    node = disk(held("a", 3, "a", used=1), held("b", 3, "b", used=7), shared, budget_gb=8)
    assert dropped(room_for(3 * GB, node)) == ["a"]
    assert dropped(room_for(5 * GB, node)) == ["a", "b", "mmproj"]


def test_of_two_links_to_one_file_only_the_last_frees_anything() -> None:
    node = disk(
        held("one", 4, "a", used=1, sha256="x"),
        held("two", 4, "b", used=2, sha256="x"),
        held("new", 4, "c", used=3),
        budget_gb=8,
    )
    assert node.fetched_bytes == 8 * GB
    assert dropped(room_for(4 * GB, node)) == ["one", "two"]


def test_two_files_of_the_same_content_are_two_on_the_disk() -> None:
    """A worker that fetched them for two models keeps both, and counts both."""
    one, two = (held(name, 4, name, used=at, sha256="x") for name, at in (("one", 1), ("two", 2)))
    node = disk(replace(one, inode=11), replace(two, inode=12), budget_gb=8)
    assert node.fetched_bytes == 8 * GB
    assert dropped(room_for(4 * GB, node)) == ["one"]
    assert dropped(room_for(8 * GB, node)) == ["one", "two"]
    linked = disk(replace(one, inode=11), replace(two, inode=11), budget_gb=4)
    assert linked.fetched_bytes == 4 * GB
    assert dropped(room_for(4 * GB, linked)) == ["one", "two"]


def test_older_model_stays_if_there_is_room_without_it() -> None:
    node = disk(held("tiny", 1, "a", used=1), held("big", 6, "b", used=2), budget_gb=7)
    assert dropped(room_for(6 * GB, node)) == ["big"]
    assert dropped(room_for(7 * GB, node)) == ["tiny", "big"]


def test_refusal_by_the_budget_names_nothing_that_takes_none_of_it() -> None:
    persons = replace(held("hand", 4, "b", keep=PERSONS), brought=False)
    plan = room_for(4 * GB, disk(held("q", 6, "q", keep="q is loaded"), persons, budget_gb=8))
    assert isinstance(plan, NoRoom)
    assert "the rest stays: 6.0 GiB (q is loaded); unload" in plan.why


def test_model_that_is_larger_than_the_budget_removes_nothing() -> None:
    plan = room_for(9 * GB, disk(held("a", 4, "a"), budget_gb=8))
    assert isinstance(plan, NoRoom)
    assert "need 9.0 GiB" in plan.why
    assert "the budget for model files is 8.0 GiB" in plan.why


def test_refusal_says_what_stays_and_why_and_what_would_help() -> None:
    node = disk(
        held("q", 6, "qwen", keep="qwen is loaded"),
        held("p", 2, "phi", keep="phi is pinned"),
        held("g", 1, "gemma"),
        budget_gb=10,
    )
    plan = room_for(4 * GB, node)
    assert isinstance(plan, NoRoom)
    assert "need 4.0 GiB, and those fetched before take 9.0 GiB of the 10.0 GiB" in plan.why
    assert (
        "would free 1.0 GiB, and the rest stays: 6.0 GiB (qwen is loaded), 2.0 GiB (phi is pinned)"
        in plan.why
    )
    assert "--budget" in plan.why


def test_full_disk_is_refused_with_its_numbers() -> None:
    plan = room_for(4 * GB, disk(free_gb=3))
    assert isinstance(plan, NoRoom)
    assert (
        "need 4.0 GiB, and 1.0 GiB of the disk has to stay free; 3.0 GiB is free now; make room there, or sw"
        in plan.why
    )
    assert "--no-distributed-disk-headroom-check" in plan.why
    assert dropped(room_for(4 * GB, disk())) == []


def test_what_others_are_copying_there_is_not_free() -> None:
    node = replace(disk(held("a", 4, "a"), free_gb=6), coming_bytes=3 * GB)
    assert dropped(room_for(4 * GB, node)) == ["a"]


def test_what_an_earlier_load_has_brought_needs_no_room_again() -> None:
    node = disk(held("a", 4, "a"), free_gb=5)
    assert dropped(room_for(20 * GB, node, 16 * GB)) == []
    assert dropped(room_for(20 * GB, node, 15 * GB)) == ["a"]
    assert dropped(room_for(20 * GB, disk(), 20 * GB)) == []
    plan = room_for(20 * GB, node, 8 * GB)
    assert isinstance(plan, NoRoom)
    assert "what is missing of the model's files needs 12.0 GiB, and 1.0 GiB" in plan.why


def test_budget_counts_what_an_earlier_load_has_brought() -> None:
    """It is a file of the budget once it is whole."""
    node = disk(held("a", 4, "a"), budget_gb=10)
    assert dropped(room_for(7 * GB, node, 6 * GB)) == ["a"]


def test_what_has_arrived_for_other_loads_is_not_taken_off_twice() -> None:
    node = replace(disk(held("a", 4, "a"), free_gb=6), coming_bytes=3 * GB, coming_arrived_bytes=2 * GB)
    assert dropped(room_for(4 * GB, node)) == []


def test_files_of_no_model_go_in_their_turn() -> None:
    node = disk(held("left", 2, used=2), held("a", 2, "a", used=3))
    assert dropped(freed(Lack(GB), node)) == ["left"]


# From what nodes report.


def a_node(name: str, *files: ModelFile, **more: object) -> ObservedNode:
    view = a_view(name)
    report = Report(model_files=files, drops_files=True, fetched_bytes=sum(one.size for one in files))
    return replace(view, report=report.model_copy(update=more))


def fetched(path: str, *models: str, sha256: str = "5a") -> ModelFile:
    return ModelFile(path=path, size=GB, sha256=sha256, brought=True, used_ms=5, models=models)


HERE = {"qwen": (NeededFile("q.gguf", GB, "5a"),)}
ELSEWHERE = {"qwen": (NeededFile("q.gguf", GB, "5a", here=False),)}


def keep_of(view: ObservedNode, *others: ObservedNode, **more: object) -> str:
    models = more.pop("models", HERE)
    fleet = files_in_fleet(models, [view, *others], more.pop("rows", ()), **more)  # type: ignore[arg-type]
    (file,) = disk_of(view, fleet).files
    return file.keep


def test_file_of_which_the_frontend_has_a_copy_may_go() -> None:
    assert keep_of(a_node("b", fetched("q.gguf"))) == ""
    assert keep_of(a_node("b", fetched("q.gguf")), models={"qwen": (NeededFile("q.gguf", GB),)}) == ""


def test_only_copy_stays_and_doubt_keeps_it() -> None:
    lone = a_node("b", fetched("q.gguf"))
    assert keep_of(lone, models=ELSEWHERE) == LAST_COPY
    assert keep_of(lone, models={}) == LAST_COPY
    assert keep_of(lone, models={"qwen": (NeededFile("q.gguf", GB, "another"),)}) == LAST_COPY
    assert keep_of(lone, a_node("a", ModelFile(path="q.gguf", size=GB)), models=ELSEWHERE) == LAST_COPY
    away = a_view("a", heard_s=3600)
    away = replace(away, report=Report(model_files=(fetched("q.gguf"),)))
    assert keep_of(lone, away, models=ELSEWHERE) == LAST_COPY


@pytest.mark.parametrize("other", ["a", "c"])
def test_copy_that_a_person_has_put_on_another_node_stays_there_so_this_one_may_go(other: str) -> None:
    persons = ModelFile(path="q.gguf", size=GB, sha256="5a")
    lone = a_node("b", fetched("q.gguf"))
    assert keep_of(lone, a_node(other, persons), models=ELSEWHERE) == ""
    away = replace(a_view(other, heard_s=3600), report=Report(model_files=(persons,)))
    assert keep_of(lone, away, models=ELSEWHERE) == LAST_COPY


def test_of_two_nodes_with_a_copy_one_keeps_it_whatever_both_are_asked() -> None:
    one, two = a_node("a", fetched("q.gguf")), a_node("b", fetched("q.gguf"))
    assert sorted([keep_of(one, two, models=ELSEWHERE), keep_of(two, one, models=ELSEWHERE)]) == [
        "",
        ONE_STAYS,
    ]


def test_what_a_person_put_there_stays() -> None:
    assert keep_of(a_node("b", ModelFile(path="q.gguf", size=GB, sha256="5a"))) == PERSONS
    brought = ModelFile(path="q.gguf", size=GB, brought=True)
    assert keep_of(a_node("b", brought)) == "its content is not known until a load needs it"


@pytest.mark.parametrize("state", list(ReplicaState))
def test_what_has_a_replica_in_any_state_stays(state: ReplicaState) -> None:
    row = a_row("qwen", on="b", state=state)
    assert keep_of(a_node("b", fetched("q.gguf")), rows=[row]) == f"qwen is {state.value}"
    assert keep_of(a_node("b", fetched("q.gguf")), rows=[a_row("qwen", on="c")]) == ""


def test_what_runs_without_a_row_and_what_was_fetched_for_it_stays() -> None:
    running = RunningReplica(model_id="gone", state="ready")
    assert keep_of(a_node("b", fetched("q.gguf", "gone"), replicas=(running,))) == "gone is loaded"


def test_what_is_being_loaded_or_is_pinned_stays() -> None:
    view = a_node("b", fetched("q.gguf"))
    (file,) = disk_of(view, files_in_fleet(HERE, [view], ()), loading="qwen").files
    assert file.keep == "qwen is being loaded"
    assert keep_of(view, pinned=["qwen"]) == "qwen is pinned"


# What has come of files that have no place yet.


def parts_of(*, rows: tuple[Replica, ...] = (), sha256: str = "5a", **more: object) -> list[str]:
    part = (ArrivedFile(sha256="5a", size=GB),)
    view = a_node("b", **{"model_files_partial": part, "drops_parts": True, **more})
    files = {"qwen": (NeededFile("q.gguf", GB, sha256),)}
    return [part.keep for part in disk_of(view, files_in_fleet(files, [view], rows)).parts]


@pytest.mark.parametrize("state", [ReplicaState.STAGING, ReplicaState.LOADING])
def test_part_of_a_file_that_a_load_is_copying_stays_and_others_may_go(state: ReplicaState) -> None:
    loading = (a_row("qwen", on="b", state=state),)
    assert parts_of() == [""]
    assert parts_of(rows=loading) == ["qwen is being copied there"]
    assert parts_of(rows=loading, sha256="") == ["qwen is being copied there"], "its hash is not known yet"
    assert parts_of(rows=loading, sha256="77") == [""]
    assert parts_of(drops_parts=False) == [NOT_DROPPED]


def test_parts_go_by_hand_in_any_case_and_count_towards_what_was_asked_for() -> None:
    part, busy = PartOnNode("5a", 2 * GB), PartOnNode("6b", 2 * GB, "q is being copied there")
    node = replace(disk(held("a", 2, "a")), parts=(part, busy))
    assert freed_by_hand(0, node, of_budget=True) == DropPlan(parts=(part,))
    assert freed_by_hand(2 * GB, node, of_budget=False) == DropPlan(parts=(part,))
    both = freed_by_hand(3 * GB, node, of_budget=False)
    assert (dropped(both), both.parts) == (["a"], (part,))  # type: ignore[union-attr]
    refused = freed_by_hand(9 * GB, node, of_budget=False)
    assert isinstance(refused, NoRoom)
    assert "9.0 GiB were to be freed" in refused.why


def test_parts_make_room_on_the_disk_before_any_file_goes() -> None:
    part = PartOnNode("5a", 2 * GB)
    node = replace(disk(held("a", 3, "a"), free_gb=3), parts=(part,))
    assert room_for(3 * GB, node) == DropPlan(parts=(part,))
    more = room_for(5 * GB, node)
    assert (dropped(more), more.parts) == (["a"], (part,))  # type: ignore[union-attr]
    assert room_for(GB, node) == DropPlan(), "there is room already"


@pytest.mark.parametrize("state", [ReplicaState.STAGING, ReplicaState.LOADING])
def test_of_two_loads_without_room_for_both_only_the_later_is_refused(state: ReplicaState) -> None:
    files = {name: (NeededFile(f"{name}.gguf", 3 * GB, name),) for name in ("qwen", "phi")}
    view = a_node("b", model_files_budget="5GiB")
    first = a_row("qwen", on="b", state=state, since_s=9)
    rows = [first, a_row("phi", on="b", state=ReplicaState.STAGING, since_s=5)]
    fleet = files_in_fleet(files, [view], rows)

    assert room_for(3 * GB, disk_of(view, fleet, "qwen")) == DropPlan()
    refused = room_for(3 * GB, disk_of(view, fleet, "phi"))
    assert isinstance(refused, NoRoom)
    assert "3.0 GiB more are being copied there for other models" in refused.why

    third = disk_of(view, fleet, "gemma")
    assert third.coming_bytes == 6 * GB, "what has not begun has both before it"


def test_what_has_arrived_for_a_load_that_goes_on_is_known_by_its_hash() -> None:
    partial = (ArrivedFile(sha256="x", size=2 * GB), ArrivedFile(sha256="y", size=GB))
    view = a_node("b", model_files_partial=partial)
    lacking = (NeededFile("q.gguf", 3 * GB, "x"), NeededFile("unknown.gguf", GB))
    assert arrived(lacking, view.report or Report()) == 2 * GB
    rows = [a_row("qwen", on="b", state=ReplicaState.STAGING)]
    node = disk_of(view, files_in_fleet({"qwen": lacking}, [view], rows))
    assert (node.coming_bytes, node.coming_arrived_bytes) == (4 * GB, 2 * GB)


def test_copy_that_only_object_storage_has_counts() -> None:
    copy = ("q.gguf", GB, "5a")
    assert keep_of(a_node("b", fetched("q.gguf")), models=ELSEWHERE, elsewhere=[copy]) == ""


def test_budget_of_an_admin_counts_before_the_workers() -> None:
    node = a_view("b", files_budget_override="2GiB").standing.node
    assert files_budget(node, "9GiB") == 2 * GB
    assert files_budget(replace(node, files_budget_override=""), "9GiB") is None
    assert files_budget(replace(node, files_budget_override=None), "9GiB") == 9 * GB
    assert files_budget(replace(node, files_budget_override=None), "50%") is None, "its disk is not known"
    assert files_budget(replace(node, files_budget_override=None), "nonsense") is None
    assert NodeId("id-b") == node.id
