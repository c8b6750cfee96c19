"""Which files go with a model, and which nodes have some of them."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import NodeId, ReplicaKey
from remuda.fleet.health import Standing
from remuda.fleet.model import StoredReport
from remuda.model_installs.removed_files import (
    brought_for,
    has_any,
    may_have_unreported,
    removed_paths,
    users_of,
)
from remuda.ops.model import Goal, Kind, Operation, OpId, ReplicaTarget, RollOut, Source, Step
from remuda.ops.ports import View
from remuda.scheduler.model import ADDED, StoredModel
from remuda.wire.codec import encode
from remuda.wire.nodes import ArrivedFile, ModelFile, Report
from tests.support.clocks import START
from tests.unit.scheduler.standing import a_view


def model(name: str, file: str) -> StoredModel:
    text = f"name: {name}\nbackend: llama-cpp\nparameters: {{model: {file}}}\n"
    return StoredModel(name, text, "r1", ADDED)


def telling(*files: ModelFile, partial: tuple[ArrivedFile, ...] = ()) -> Standing:
    """A node as it told last, in an earlier life."""
    standing = a_view("attic").standing
    body = encode(Report(boot_id="earlier", model_files=files, model_files_partial=partial)).decode()
    node = replace(standing.node, report=StoredReport(standing.node.boot_id or "", 1, body))  # type: ignore[arg-type]
    return replace(standing, node=node)


def test_all_parts_go_also_where_this_frontend_has_none_of_them(tmp_path: Path) -> None:
    parts = ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf")
    assert removed_paths(tmp_path, model("big", parts[0]), []) == parts
    assert removed_paths(tmp_path, model("big", parts[0]), [model("too", parts[0])]) == ()


def test_what_was_fetched_for_an_earlier_form_of_the_model_goes_as_well(tmp_path: Path) -> None:
    node = telling(
        ModelFile(path="old.gguf", brought=True, models=("qwen",)),
        ModelFile(path="shared.gguf", brought=True, models=("qwen", "phi")),
        ModelFile(path="persons.gguf", models=("qwen",)),
        ModelFile(path="others.gguf", brought=True, models=("phi",)),
    )
    brought = tuple(brought_for("qwen", [node, a_view("new").standing]))
    assert brought == ("old.gguf", "shared.gguf")
    paths = removed_paths(tmp_path, model("qwen", "new.gguf"), [model("phi", "shared.gguf")], brought)
    assert paths == ("new.gguf", "old.gguf")
    assert has_any(node, paths)
    assert not has_any(node, ("new.gguf",))


def load_of(node: NodeId, finished_at: datetime | None) -> View:
    source, target = Source(""), ReplicaTarget(ReplicaKey("qwen", 0))
    op = OpId("op")
    operation = Operation(
        op, Kind.LOAD, source, RollOut(1), "", START, finished_at=finished_at, target=target
    )
    return View(operation, (Step(op, node, "attic", Kind.LOAD, source, Goal(())),), 1)


@pytest.mark.parametrize(
    ("heard_s_later", "unreported"), [(None, True), (-3600, True), (0, True), (59, True), (61, False)]
)
def test_a_node_that_was_not_heard_since_a_load_may_have_its_files(
    heard_s_later: int | None, unreported: bool
) -> None:
    """Its worker may have been killed before it told of them. None: the load has not ended."""
    standing = a_view("attic").standing
    heard = standing.node.last_heartbeat
    ended = None if heard_s_later is None else heard - timedelta(seconds=heard_s_later)
    assert may_have_unreported(standing, [load_of(standing.node.id, ended)]) == unreported
    assert not may_have_unreported(standing, [load_of(NodeId("another"), ended)])


def test_a_node_that_tells_of_a_part_of_some_file_may_have_it_of_any_model_that_it_was_to_load() -> None:
    standing = telling(partial=(ArrivedFile(sha256="5a", size=1),))
    long_ago = standing.node.last_heartbeat - timedelta(days=2)
    assert may_have_unreported(standing, [load_of(standing.node.id, long_ago)])
    assert not may_have_unreported(standing, [load_of(NodeId("another"), long_ago)])
    assert not may_have_unreported(telling(), [load_of(standing.node.id, long_ago)])


FILES = st.sampled_from(("a/m.gguf", "a/proj.gguf", "a/b/lora.gguf", "m.gguf", "proj.gguf"))
NAMED = st.sampled_from(("parameters: {{model: {}}}", "mmproj: {}", "lora_adapters: [{}]", "draft_model: {}"))
FORMS = st.sampled_from(("{}", "/nowhere/models/{}"))


@given(removed=FILES, used=st.lists(st.tuples(FILES, NAMED, FORMS), min_size=1, max_size=4))
def test_no_file_goes_that_another_model_names_in_any_way(
    removed: str, used: list[tuple[str, str, str]]
) -> None:
    folder = Path("/nowhere/models")
    others = [
        StoredModel(str(number), f"name: m{number}\n{key.format(form.format(path))}\n", "r1", ADDED)
        for number, (path, key, form) in enumerate(used)
    ]
    goes = removed_paths(folder, model("gone", removed), others)
    assert bool(goes) == (removed not in {path for path, _, _ in used})


def test_a_file_beside_a_model_is_named_by_its_own_name_alone() -> None:
    text = "name: vision\nparameters: {model: qwen/m.gguf}\nmmproj: proj.gguf\n"
    text += "download_files: [{filename: lists.txt, uri: 'https://a.example/lists.txt'}]\n"
    other = StoredModel("vision", text, "r1", ADDED)
    used = {"qwen/proj.gguf", "qwen/m.gguf", "qwen/lists.txt", "proj.gguf"}
    assert set(users_of(Path("/nowhere"), [other], (*used, "qwen/old.gguf"))) == used
