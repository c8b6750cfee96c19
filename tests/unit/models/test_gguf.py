import contextlib
import io
import struct
from pathlib import Path

import gguf as published
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.models.gguf import CutOff, GgufHeader, bytes_needed, parts_of, read_header, read_tensors
from remuda.models.gguf_file import missing_bytes, open_gguf
from tests.support.models import tiny_model, tiny_reranker
from tests.unit.models.ggufs import LLAMA, Value, gguf, text, value


def refusal(data: bytes | io.BytesIO) -> str:
    with pytest.raises(Invalid) as refused:
        read_header(data if isinstance(data, io.BytesIO) else io.BytesIO(data))
    return refused.value.message


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_is_read(version: int) -> None:
    assert read_header(gguf(LLAMA, version=version, tensors=291)) == GgufHeader(
        architecture="llama",
        name="A model",
        kind="model",
        tensor_count=291,
        context_length=131072,
        block_count=32,
        embedding_length=4096,
        head_count=32,
        head_counts_kv=(8,),
        key_length=128,
        value_length=128,
        vocab_size=3,
        file_type=15,
        has_chat_template=True,
    )


def test_the_order_of_keys_does_not_matter() -> None:
    assert read_header(gguf(dict(reversed(list(LLAMA.items()))))) == read_header(gguf(LLAMA))


def test_layers_may_differ_in_their_heads() -> None:
    header = read_header(gguf({**LLAMA, "llama.attention.head_count_kv": [0, 8, 0, 4]}))

    assert header.kv_heads == 12


def test_without_a_word_on_cached_heads_all_are_cached() -> None:
    keys = {key: item for key, item in LLAMA.items() if not key.endswith("head_count_kv")}

    assert read_header(gguf(keys)).kv_heads == 32 * 32


def test_nonsense_in_a_key_is_as_good_as_nothing() -> None:
    nonsense: dict[str, Value] = {
        "llama.context_length": "long",
        "llama.block_count": 1.5,
        "general.file_type": [-1],
    }
    header = read_header(gguf({**LLAMA, **nonsense}))

    assert (header.context_length, header.block_count, header.file_type) == (0, 0, None)


def test_a_real_writers_file_is_read() -> None:
    model = open_gguf(tiny_model())

    assert (model.header.architecture, model.header.vocab_size) == ("llama", 368)
    assert model.header.has_chat_template
    assert (model.parts, model.size_bytes) == ((tiny_model(),), tiny_model().stat().st_size)


def test_a_model_that_scores_says_so() -> None:
    assert open_gguf(tiny_reranker()).header.label_count == 2


def test_the_tensors_need_not_be_there() -> None:
    whole = tiny_model().read_bytes()

    assert read_header(io.BytesIO(whole[: len(whole) // 20])) == open_gguf(tiny_model()).header


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b"GGML\3\0\0\0", "not a GGUF file"),
        (b"\x89PNG\r\n", "not a GGUF file"),
        (b"GGUF\1\0\0\0", "it is a GGUF file of version 1"),
        (b"GGUF\0\0\0\3", "it is a GGUF file for big-endian machines"),
        (b"GGUF\3\0\0\0", "the file is cut off: it ends within the number of its tensors"),
        (gguf({}, claimed=1 << 60), "it is damaged: it claims to have"),
        (gguf({}, claimed=5), "the file is cut off: it ends within the name of a key"),
        (gguf({}), "it does not say its architecture"),
        (
            gguf({}, claimed=1).getvalue() + struct.pack("<Q", 1 << 62),
            "it is damaged: the name of a key claims",
        ),
        (gguf({}, claimed=1).getvalue() + text("a") + b"\x63\0\0\0", "it is damaged: a is of a kind 99"),
        (gguf({"a": "x"}).getvalue()[:-1], "the file is cut off: it ends within a"),
    ],
)
def test_a_bad_file_is_refused(data: bytes | io.BytesIO, said: str) -> None:
    assert refusal(data).startswith(said)


@pytest.mark.parametrize(
    ("kind", "count", "said"),
    [
        (8, 1 << 50, "it is damaged: a claims to have 1125899906842624 texts"),
        (5, 1 << 50, "it is damaged, or too large"),
        (5, 1 << 20, "the file is cut off: it ends within a"),
        (9, 1, "it is damaged: a is a list of a kind 9"),
    ],
)
def test_a_list_longer_than_the_file_costs_nothing(kind: int, count: int, said: str) -> None:
    data = gguf({}, claimed=1).getvalue() + text("a") + struct.pack("<IIQ", 9, kind, count)

    assert refusal(data).startswith(said)


def test_many_keys_of_nothing_come_to_an_end() -> None:
    entry = text("a") + value("x" * (1 << 20))

    assert "MiB" in refusal(gguf({}, claimed=100).getvalue() + entry * 70)


@given(st.binary(max_size=300), st.integers(0, 200))
def test_damage_is_refused_or_read_over(noise: bytes, at: int) -> None:
    sound = gguf(LLAMA).getvalue()

    with contextlib.suppress(Invalid):
        assert read_header(io.BytesIO(sound[:at] + noise + sound[at + len(noise) :])).architecture


def test_parts_are_known_by_their_names() -> None:
    assert parts_of("a.gguf") == ("a.gguf",)
    assert parts_of("q/a-00002-of-00003.gguf") == tuple(f"q/a-0000{n}-of-00003.gguf" for n in (1, 2, 3))


@pytest.mark.parametrize("name", ["a-00004-of-00003.gguf", "a-00000-of-00003.gguf", "a-00001-of-99999.gguf"])
def test_an_impossible_part_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="there cannot be a part"):
        parts_of(name)


def test_any_part_leads_to_the_whole_model(tmp_path: Path) -> None:
    names = parts_of("a-00001-of-00003.gguf")
    for name in names:
        (tmp_path / name).write_bytes(gguf(LLAMA if name == names[0] else {}).getvalue())

    model = open_gguf(tmp_path / names[1])

    assert model.first == tmp_path / names[0]
    assert model.size_bytes == len(gguf(LLAMA).getvalue()) + 2 * len(gguf({}).getvalue())


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "a-00001-of-00002.gguf").write_bytes(gguf(LLAMA).getvalue())

    with pytest.raises(Invalid, match=r"a-00002-of-00002.gguf: No such file.*has 2 parts"):
        open_gguf(tmp_path / "a-00001-of-00002.gguf")


def test_the_file_is_named_in_complaints(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"nothing")

    with pytest.raises(Invalid, match=r"a\.gguf: not a GGUF file"):
        open_gguf(tmp_path / "a.gguf")


def test_a_whole_file_is_as_long_as_its_tensors_need() -> None:
    with tiny_model().open("rb") as file:
        needed = bytes_needed(file)
    assert tiny_model().stat().st_size - 32 <= needed <= tiny_model().stat().st_size


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_that_was_not_copied_to_its_end_is_refused_with_the_numbers(
    tmp_path: Path, share: float
) -> None:
    whole = tiny_model().read_bytes()
    half = tmp_path / "half.gguf"
    half.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CutOff, match=r"half\.gguf: the file is (cut off|empty).*copy or download it again"):
        open_gguf(half)
    assert missing_bytes(half) > 0
    assert missing_bytes(tiny_model()) == 0


def test_a_file_of_the_current_folder_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half.gguf").write_bytes(tiny_model().read_bytes()[:-100])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CutOff, match=r"^half\.gguf: the file is cut off"):
        open_gguf(Path("half.gguf"))


def test_a_part_that_was_not_copied_to_its_end_is_named(tmp_path: Path) -> None:
    whole = tiny_model().read_bytes()
    first, second = (tmp_path / name for name in parts_of("a-00001-of-00002.gguf"))
    first.write_bytes(whole)
    second.write_bytes(whole[:-100])
    with pytest.raises(CutOff, match=r"a-00002-of-00002\.gguf: the file is cut off: it has \d+ bytes"):
        open_gguf(first)


def test_parameters_are_counted_over_all_tensors() -> None:
    reader = published.GGUFReader(tiny_model())

    with tiny_model().open("rb") as file:
        assert read_tensors(file).parameters == sum(int(one.n_elements) for one in reader.tensors)
    assert open_gguf(tiny_model()).parameters == sum(int(one.n_elements) for one in reader.tensors)


def test_quantisations_are_called_as_their_publishers_do() -> None:
    for kind in published.LlamaFileType:
        name = kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        assert GgufHeader("llama", file_type=kind.value).quantisation in (name, ""), kind
    assert GgufHeader("llama", file_type=15).quantisation == "Q4_K_M"
    assert GgufHeader("llama").quantisation == GgufHeader("llama", file_type=999).quantisation == ""
