"""Indexes: merge keys, complaints that name the entry, and documents that mean harm."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.errors import Invalid, RemudaError
from remuda.gallery import index
from remuda.gallery.index import read_index
from remuda.gallery.model import GalleryIndex
from remuda.gallery.sources import shipped_index
from tests.support.examples import examples
from tests.unit.gallery.indexes import LOCALAI_LIKE

GOOD = b"- {name: good, uri: 'registry.example/x:latest'}\n"


def only(content: bytes) -> GalleryIndex:
    """The index of `content` followed by a good entry, which must survive whatever stands before it."""
    read = read_index(content + GOOD)
    assert read.entries[-1].name == "good"
    return read


def complaint(content: bytes) -> str:
    read = only(content)
    assert len(read.complaints) == 1
    return str(read.complaints[0])


# What indexes look like


def test_merge_keys_hand_fields_on_and_own_fields_win() -> None:
    entries = {entry.name: entry for entry in read_index(LOCALAI_LIKE).entries}

    cuda = entries["cuda12-llama-cpp"]
    assert (cuda.alias, cuda.license, cuda.meta) == ("llama-cpp", "mit", False)
    assert cuda.mirrors == ("localai/localai-backends:latest-gpu-nvidia-cuda-12-llama-cpp",)
    assert entries["llama-cpp"].meta
    assert entries["cuda12-vllm"].alias == "vllm"


def test_the_first_of_several_merged_maps_wins() -> None:
    read = only(b"- &a {name: a, uri: u-a}\n- &b {name: b, uri: u-b, alias: b}\n- {<<: [*a, *b], name: c}\n")

    assert (read.entries[2].uri, read.entries[2].alias) == ("u-a", "b")


def test_texts_stay_as_written() -> None:
    (entry, _) = only(b"- {name: x, uri: u, version: 1.10, license: no, size: 12, description: ~}\n").entries

    assert (entry.version, entry.license, entry.size, entry.description) == ("1.10", "no", "12", "")


def test_unknown_fields_are_skipped_whatever_they_hold() -> None:
    assert (
        only(b"- {name: x, uri: u, files: [{a: [b]}], odd: !!python/object:os.system {}}\n").complaints == ()
    )


def test_only_the_first_document_counts() -> None:
    assert len(read_index(b"---\n" + GOOD + b"---\n- nonsense\n").entries) == 1


def test_an_index_may_begin_with_a_byte_order_mark() -> None:
    assert len(read_index(b"\xef\xbb\xbf" + GOOD).entries) == 1


def test_the_shipped_index_has_no_fault() -> None:
    read = read_index(shipped_index())

    assert read.complaints == ()
    assert {"llama-cpp", "builtin-llama-cpp", "echo"} == {entry.name for entry in read.entries}


# One bad entry


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- just text\n", "entry 1 (line 1): an entry is a map"),
        (b"- [a]\n", "entry 1 (line 1): an entry is a map"),
        (b"- {uri: u}\n", "entry 1 (line 1): name is missing"),
        (b"- {name: x}\n", "x (line 1): it has neither a uri nor capabilities"),
        (b"- name: x\n  uri:\n    - u\n", "x (line 3): uri must be text"),
        (b"- {name: ../x, uri: u}\n", "../x (line 1): name must be letters"),
        (b"- {name: a/b, uri: u}\n", "a/b (line 1): name must be letters"),
        (b"- {name: .x, uri: u}\n", ".x (line 1): name must be letters"),
        (b"- {name: a@b, uri: u}\n", "a@b (line 1): name must be letters"),
        (b"- {name: x, uri: u, tags: many}\n", "x (line 1): tags must be a list"),
        (b"- {name: x, uri: u, tags: [[a]]}\n", "x (line 1): tags must be text"),
        (b"- {name: x, uri: 'a b'}\n", "x (line 1): uri must have no spaces"),
        (b"- {name: x, uri: u, mirrors: ['a\tb']}\n", "x (line 1): mirrors must have no spaces"),
        (b"- {name: x, uri: u, sha256: abc}\n", "x (line 1): sha256 must be 64"),
        (b"- {name: x, capabilities: [a]}\n", "x (line 1): capabilities must map"),
        (b"- {name: x, capabilities: {nvidia: ../y}}\n", "x (line 1): the backend for nvidia must be"),
        (b"- {name: x, capabilities: {nvidia: [y]}}\n", "x (line 1): capabilities must be text"),
        (b"- {name: x, uri: u, uri: v}\n", "x (line 1): uri: given twice"),
        (b"- {name: x, uri: u, ? [a] : b}\n", "x (line 1): a key must be a word"),
        (b"- {name: x, uri: u, <<: text}\n", "x (line 1): << can only merge maps"),
        (b"- {name: x, uri: !!binary aGk=}\n", "x (line 1): uri has the tag"),
        (b"- !!python/object:os.system {name: x, uri: u}\n", "x (line 1): the tag tag:yaml.org,2002:python"),
        (
            b"- {name: x, uri: u, description: " + b"d" * 20_001 + b"}\n",
            "x (line 1): description has more than",
        ),
        (b"- {name: x, uri: u, tags: [" + b"t," * 257 + b"]}\n", "x (line 1): tags has 257 items"),
    ],
)
def test_a_bad_entry_is_named_and_the_others_stay(content: bytes, said: str) -> None:
    assert complaint(content).startswith(said)


def test_a_name_used_twice_counts_once_whatever_its_case() -> None:
    read = only(b"- {name: x, uri: first}\n- {name: X, uri: second}\n")

    assert read.entries[0].uri == "first"
    assert str(read.complaints[0]) == "X (line 2): the name was taken on line 1, which counts"


def test_a_bad_map_spoils_only_those_that_merge_it() -> None:
    read = only(b"- &bad {name: a, uri: u, uri: v}\n- {<<: *bad, name: b}\n")

    assert [each.entry for each in read.complaints] == ["a", "b"]


# A bad document


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"# nothing\n", "empty"),
        (b"name: x\n", "line 1: an index is a list"),
        (b"text", "line 1: an index is a list"),
        (b"- a\n- [b\n", "line 2: not valid YAML"),
        (b"- *nobody\n", r"line 1: \*nobody is an undefined alias"),
        (b"- &a [*a]\n", r"line 1: \*a contains itself"),
        (b"- &a {<<: *a}\n", r"line 1: \*a contains itself"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"- \x00\n", "not valid YAML"),
        (b"<html><body>404</body></html>", "an index is a list"),
    ],
)
def test_a_bad_document_is_refused_with_its_line(content: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        read_index(content)


# Documents that mean harm: each would cost gigabytes or hours if it were taken literally.


@pytest.mark.parametrize(
    "content", [b"[" * 2_000_000, b"{a: " * 1_000_000, b"- " * 1_000_000, b"? " * 1_000_000]
)
def test_depth_is_refused_at_once(content: bytes) -> None:
    with pytest.raises(Invalid, match="nested more than 16"):
        read_index(content)


def test_laughs_stay_few() -> None:
    lines = [b"- &l0 {name: l0, uri: u, tags: [lol]}"]
    lines += [
        b"- &l%d {name: l%d, uri: u, tags: [%s]}" % (n, n, b",".join([b"*l%d" % (n - 1)] * 9))
        for n in range(1, 12)
    ]

    read = read_index(b"\n".join(lines))

    assert len(read.complaints) == 11


def test_merges_of_merges_stay_few() -> None:
    lines = [b"- &l0 {name: l0, uri: u}"]
    lines += [
        b"- &l%d {name: l%d, <<: [%s]}" % (n, n, b",".join([b"*l%d" % (n - 1)] * 50)) for n in range(1, 200)
    ]

    assert len(read_index(b"\n".join(lines)).entries) == 200


def test_merging_large_maps_over_and_over_is_refused() -> None:
    large = b"- &big {name: big, uri: u, %s}\n" % b", ".join(b"k%d: v" % n for n in range(20_000))

    read = read_index(large + b"".join(b"- {name: n%d, <<: *big}\n" % n for n in range(200)))

    assert "merge keys expand to more than" in str(read.complaints[-1])
    assert read.entries[0].name == "big"


def test_a_long_chain_of_merges_is_refused_not_followed() -> None:
    chain = b",".join([b"&c0 {uri: u}", *(b"&c%d {<<: *c%d}" % (n, n - 1) for n in range(1, 5000))])

    read = read_index(b"- {name: a, uri: u, odd: [" + chain + b"]}\n- {name: b, <<: *c4999}\n")

    assert "merge keys lead from one to the next" in str(read.complaints[0])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a" * (index.LIMITS.bytes + 1), "more than 8 MiB"),
        (b"- a\n" * (index.LIMITS.parts + 1), "parts"),
        (GOOD * (index.ENTRIES_MAX + 1), "more than the 10000 allowed"),
    ],
)
def test_size_is_bounded(content: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        read_index(content)


def taken_or_refused(content: bytes) -> GalleryIndex | RemudaError:
    try:
        return read_index(content)
    except RemudaError as error:
        return error


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    assert isinstance(taken_or_refused(content), (GalleryIndex, Invalid))


STRUCTURE = ("- ", "? ", ": ", "{", "}", "[", "]", ",", "\n", "\n  ", "'", '"', "#", "---\n", "%", "\\", "\t")
WORDS = ("name", "uri", "capabilities", "tags", "x", "é", "~", "<<", "&a ", "&b ", "*a", "*b")
TAGS = ("!!merge ", "!!str ", "!odd ")
PIECES = st.sampled_from(STRUCTURE + WORDS + TAGS)


@settings(max_examples=examples(400))
@given(st.lists(PIECES, max_size=60))
def test_any_yaml_like_text_is_read_or_refused(pieces: list[str]) -> None:
    answer = taken_or_refused("".join(pieces).encode())

    assert isinstance(answer, (GalleryIndex, Invalid))
    if isinstance(answer, GalleryIndex):
        assert all(entry.name and (entry.uri or entry.capabilities) for entry in answer.entries)


ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
FIELDS = st.dictionaries(
    st.sampled_from(["name", "alias", "uri", "mirrors", "capabilities", "version", "sha256", "tags", "odd"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | ASCII,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ASCII, inner, max_size=3),
        max_leaves=6,
    ),
)


@given(st.lists(FIELDS, max_size=6))
def test_every_entry_is_either_taken_or_complained_about(entries: list[dict[str, object]]) -> None:
    read = taken_or_refused(json.dumps(entries).encode())

    assert isinstance(read, GalleryIndex)
    assert len(read.entries) + len(read.complaints) == len(entries)
