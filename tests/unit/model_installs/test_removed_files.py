"""Which files go with a model, and which nodes have some of them."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from remuda.fleet.health import Standing
from remuda.fleet.model import StoredReport
from remuda.model_installs.removed_files import brought_for, has_any, removed_paths, users_of
from remuda.scheduler.model import ADDED, StoredModel
from remuda.wire.codec import encode
from remuda.wire.nodes import ModelFile, Report
from tests.unit.scheduler.standing import a_view


def model(name: str, file: str) -> StoredModel:
    text = f"name: {name}\nbackend: llama-cpp\nparameters: {{model: {file}}}\n"
    return StoredModel(name, text, "r1", ADDED)


def telling(*files: ModelFile) -> Standing:
    """A node as it told last, in an earlier life."""
    standing = a_view("attic").standing
    body = encode(Report(boot_id="earlier", model_files=files)).decode()
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
