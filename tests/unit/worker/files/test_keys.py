"""Which keys are accepted, and where they lead."""

import os
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.worker.files import limits
from remuda.worker.files.keys import (
    Area,
    FilePlace,
    check_object_key,
    checked_parts,
    is_partial_of,
    own_metadata,
    partial_name,
    place_of,
    target_of,
    whole_name,
)
from tests.support.path_attacks import ATTACKS

BASE = Path("/base/folder")
BY_LINKS = {attack for attack in ATTACKS if "link" in attack}
# What attacks are made of, so that chance finds combinations of them.
FRAGMENTS = ["..", ".", "/", "\\", "%2e", "%2f", "%5c", "%00", "%25", "\0", "\u2025", "\uff0e", "\uff0f"]
FRAGMENTS += ["\u200b", "\u202e", "C:", " ", "a", "models", "data", "é", "~", "$HOME", "\n", "\ud800"]

hostile = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=8).map("".join)
names = st.text(st.characters(categories=["L", "N"], exclude_characters="/"), min_size=1, max_size=20)


def accepted(key: str) -> FilePlace | None:
    try:
        return place_of(key)
    except Invalid:
        return None


@given(hostile)
def test_an_accepted_key_stays_below_its_folder_however_it_is_read(key: str) -> None:
    place = accepted(key)
    if place is None:
        return
    path = os.path.join(BASE, *place.parts)
    assert os.path.normpath(path) == path
    assert path.startswith(f"{BASE}/")
    windows = "/".join(place.parts).replace("\\", "/")
    assert all(part.strip(". ") for part in windows.split("/"))
    assert "\0" not in path
    path.encode()


@given(hostile)
def test_accepting_is_stable_under_decoding(key: str) -> None:
    """A key that is decoded once more on its way is as harmless as before."""
    if accepted(key) is not None:
        assert accepted(unquote(key, errors="replace")) is not None


@given(st.lists(names, min_size=1, max_size=6))
def test_ordinary_names_are_accepted_as_they_are(parts: list[str]) -> None:
    place = accepted("/".join(parts))
    normal = all(part.strip(". ") for part in parts)
    if normal and place is not None:
        below = parts[1:] if parts[0] in ("models", "data") and len(parts) > 1 else parts
        assert place.parts == tuple(below)


@pytest.mark.parametrize("attack", sorted(ATTACKS.keys() - BY_LINKS))
def test_attacks_are_refused_without_looking_at_the_disk(attack: str) -> None:
    for prefix in ("models/", "data/", "", "ephemeral/"):
        with pytest.raises(Invalid):
            place_of(prefix + ATTACKS[attack])
        with pytest.raises(Invalid):
            place_of(prefix + ATTACKS[attack], folder=True)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("models/a/b.gguf", FilePlace(Area.MODELS, ("a", "b.gguf"))),
        ("data/x", FilePlace(Area.DATA, ("x",))),
        ("modelsx/y", FilePlace(Area.STAGING, ("modelsx", "y"))),
        ("models", FilePlace(Area.STAGING, ("models",))),
        ("ephemeral/inputs/1/x", FilePlace(Area.STAGING, ("ephemeral", "inputs", "1", "x"))),
        ("models/CON", FilePlace(Area.MODELS, ("CON",))),
        ("models/qwen:8b", FilePlace(Area.MODELS, ("qwen:8b",))),
        ("models/50% off.bin", FilePlace(Area.MODELS, ("50% off.bin",))),
        ("models/.gitattributes", FilePlace(Area.MODELS, (".gitattributes",))),
        ("models/模型/ü…v1.gguf", FilePlace(Area.MODELS, ("模型", "ü…v1.gguf"))),
        (f"models/{'a' * limits.NAME_BYTES_MAX}", FilePlace(Area.MODELS, ("a" * limits.NAME_BYTES_MAX,))),
    ],
)
def test_keys_lead_to_their_folders(key: str, place: FilePlace) -> None:
    assert place_of(key) == place


@pytest.mark.parametrize("key", ["models/", "models", ""])
def test_a_prefix_may_name_a_whole_folder(key: str) -> None:
    assert place_of(key, folder=True).parts == ()


@pytest.mark.parametrize("key", ["", "models/", "a/", "/a", "//"])
def test_a_file_has_a_name(key: str) -> None:
    with pytest.raises(Invalid):
        place_of(key)


def test_object_keys_of_localai_may_hold_double_slashes() -> None:
    check_object_key("ephemeral/fetch/12//var/out.wav")
    for key in ("", "/a", "a/", "a//../b", "a/%2e%2e/b", "a\0b"):
        with pytest.raises(Invalid):
            check_object_key(key)


@given(names, st.sampled_from(["", "0" * 64, "abcdef01" * 8]))
def test_partial_uploads_are_known_by_their_name(name: str, target: str) -> None:
    entry = partial_name(name, target)

    assert target_of(entry, name) == target
    assert target_of(entry, name + "x") is None
    assert is_partial_of(entry, name)
    assert target_of(whole_name(name, "abc_-9"), name) is None
    assert len(entry.encode()) < 255
    with pytest.raises(Invalid):
        checked_parts(f"a/{entry}")


def test_metadata_is_told_from_content() -> None:
    content = {"a.gguf", "b.bin", "b.sha256", "notes.sha256"}
    metadata = {"a.gguf.sha256", "c.bin", "c.bin.sha256.target", "d.sha256.target", partial_name("e", "")}

    assert own_metadata(frozenset(content | metadata)) == metadata
