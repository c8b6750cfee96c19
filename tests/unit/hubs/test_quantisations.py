"""Which files of a repository are taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid, NotFound
from remuda.hubs.quantisations import ChosenFiles, NodeRoom, RepoFile, choose_entry, choose_files, precision

GIB = 1 << 30
REPO = (
    RepoFile("README.md", 1),
    RepoFile("Qwen-Q2_K.gguf", 3 * GIB),
    RepoFile("Qwen-Q4_K_M.gguf", 5 * GIB),
    RepoFile("Qwen-Q8_0.gguf", 9 * GIB),
    RepoFile("BF16/Qwen-BF16-00001-of-00002.gguf", 9 * GIB),
    RepoFile("BF16/Qwen-BF16-00002-of-00002.gguf", 8 * GIB),
)


def chosen(*nodes: NodeRoom, wanted: str = "", files: tuple[RepoFile, ...] = REPO) -> ChosenFiles:
    return choose_files("a/b", files, wanted, nodes)


def paths(found: ChosenFiles) -> list[str]:
    return [file.path for file in found.files]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("Q8_0/x-Q8_0-00001-of-00003.gguf", "Q8_0"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("x.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("ggml-model-f16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gemma-3-4b-it-qat-q4_0.gguf", "Q4_0"),
        ("x-Q4_K_M-imat.gguf", "Q4_K_M"),
        ("model.gguf", ""),
    ],
)
def test_a_quantisation_is_read_from_the_name(path: str, name: str) -> None:
    assert precision(path) == name


def test_the_usual_one_is_taken_where_a_node_can_hold_it() -> None:
    found = chosen(NodeRoom("small", 4 * GIB), NodeRoom("large", 24 * GIB))
    assert paths(found) == ["Qwen-Q4_K_M.gguf"]
    assert found.reason == "Q4_K_M (5.0 GiB), which fits large (24.0 GiB)"


def test_else_the_largest_that_a_node_can_hold() -> None:
    found = chosen(NodeRoom("small", 4 * GIB))
    assert paths(found) == ["Qwen-Q2_K.gguf"]
    assert "the largest that fits a node" in found.reason
    assert "small, has 4.0 GiB" in found.reason
    larger = tuple(file for file in REPO if "Q4" not in file.path)
    assert paths(chosen(NodeRoom("a", 16 * GIB), files=larger)) == ["Qwen-Q8_0.gguf"]


def test_where_no_node_can_hold_any_the_numbers_are_told() -> None:
    with pytest.raises(Invalid, match=r"Q2_K \(3\.0 GiB\), takes about 3\.8 GiB.*tiny, has 2\.0 GiB.*:Q2_K"):
        chosen(NodeRoom("tiny", 2 * GIB))


def test_without_nodes_the_usual_one_is_taken_and_said_so() -> None:
    assert "no node is registered" in chosen().reason
    assert paths(chosen()) == ["Qwen-Q4_K_M.gguf"]


def test_a_person_may_choose_and_gets_all_parts() -> None:
    found = chosen(NodeRoom("tiny", 1), wanted="bf16")
    assert paths(found) == ["BF16/Qwen-BF16-00001-of-00002.gguf", "BF16/Qwen-BF16-00002-of-00002.gguf"]


def test_an_unknown_quantisation_lists_what_there_is() -> None:
    with pytest.raises(NotFound, match=r"no quantisation Q5_K_M.*Q2_K \(3\.0 GiB\), Q4_K_M"):
        chosen(wanted="Q5_K_M")


def test_a_repository_that_lacks_a_part_is_refused() -> None:
    with pytest.raises(Invalid, match=r"lacks BF16/Qwen-BF16-00002-of-00002\.gguf"):
        chosen(files=REPO[:-1])
    weights = (RepoFile("config.json", 1), RepoFile("model-00002-of-00002.safetensors", 1))
    with pytest.raises(Invalid, match=r"lacks model-00001-of-00002\.safetensors"):
        chosen(files=weights)


def test_a_projector_comes_with_its_model() -> None:
    eyes = (RepoFile("mmproj-F32.gguf", 3), RepoFile("mmproj-F16.gguf", 2), RepoFile("mmproj-BF16.gguf", 2))
    assert paths(chosen(files=(*REPO, *eyes))) == ["Qwen-Q4_K_M.gguf", "mmproj-F16.gguf"]


def test_several_models_of_one_quantisation_have_to_be_told_apart_by_file() -> None:
    two = (RepoFile("small-Q4_K_M.gguf", 1), RepoFile("large-Q4_K_M.gguf", 2))
    with pytest.raises(Invalid, match="holds several models"):
        chosen(files=two)


def test_safetensors_are_taken_with_what_describes_them() -> None:
    folder = [
        "config.json",
        "tokenizer.json",
        "tokenizer.model",
        "chat_template.jinja",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "1_Pooling/config.json",
    ]
    rest = [
        "README.md",
        ".gitattributes",
        "pytorch_model.bin",
        "original/params.json",
        "consolidated.safetensors",
        "onnx/model.onnx",
        "onnx/config.json",
    ]
    found = chosen(files=tuple(RepoFile(path, 1) for path in (*rest, *folder)))
    assert sorted(paths(found)) == sorted(folder)


def test_a_repository_without_a_model_we_can_use_says_what_it_has() -> None:
    with pytest.raises(NotFound, match=r"neither GGUF nor safetensors.*pytorch_model\.bin"):
        chosen(files=(RepoFile("pytorch_model.bin", 1),))
    with pytest.raises(NotFound, match="no GGUF files, and so no quantisation Q8_0"):
        chosen(files=(RepoFile("model.safetensors", 1),), wanted="Q8_0")


@given(st.permutations(REPO), st.lists(st.integers(4, 40), min_size=1, max_size=3))
def test_order_does_not_matter_and_what_is_chosen_fits(files: list[RepoFile], rooms: list[int]) -> None:
    nodes = [NodeRoom(f"n{number}", room * GIB) for number, room in enumerate(rooms)]
    found = choose_files("a/b", files, "", nodes)
    assert paths(found) == paths(choose_files("a/b", REPO, "", nodes))
    assert sum(file.size for file in found.files) < max(rooms) * GIB


SIZES = {"qwen-q4": 5 * GIB, "qwen-q8": 9 * GIB, "qwen-q2": 3 * GIB, "qwen-odd": 0}


@pytest.mark.parametrize(
    ("room_gib", "chosen", "words"),
    [
        (64, "qwen-q4", "qwen-q4 (5.0 GiB), which fits big (64.0 GiB)"),
        (4, "qwen-q2", "qwen-q2 (3.0 GiB), the largest that fits a node: qwen-q4 takes about"),
    ],
)
def test_a_gallerys_variants_are_chosen_among_as_quantisations_are(
    room_gib: int, chosen: str, words: str
) -> None:
    name, reason = choose_entry("qwen", SIZES, "", [NodeRoom("big", room_gib * GIB)])

    assert (name, reason.startswith(words)) == (chosen, True)


def test_a_variant_may_be_asked_for_and_has_to_be_one() -> None:
    assert choose_entry("qwen", SIZES, "QWEN-ODD", [NodeRoom("small", 1)])[0] == "qwen-odd"
    with pytest.raises(NotFound) as missing:
        choose_entry("qwen", SIZES, "llama", ())
    assert "it has qwen-q4, qwen-q8, qwen-q2, qwen-odd" in missing.value.hint


def test_where_no_variant_fits_the_way_out_is_named() -> None:
    with pytest.raises(Invalid) as refused:
        choose_entry("qwen", SIZES, "", [NodeRoom("small", 1 << 20)])

    assert "the smallest variant, qwen-q2 (3.0 GiB)" in refused.value.message
    assert refused.value.hint == "add a larger node, or name one with --variant, such as qwen-q2"


def test_without_nodes_or_sizes_the_entry_itself_is_taken() -> None:
    assert choose_entry("qwen", SIZES, "", ())[0] == "qwen-q4"
    assert choose_entry("qwen", {"a": 0, "b": 5}, "", [NodeRoom("n", 1)]) == (
        "a",
        "a, the usual choice: its gallery does not say how large it is",
    )
    assert choose_entry("qwen", {"a": 0}, "", ()) == ("a", "")
