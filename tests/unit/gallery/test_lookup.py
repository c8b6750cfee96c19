"""Finding entries by name over several galleries."""

import pytest

from remuda.gallery.model import GalleryEntry, find, search, sharing_alias
from tests.unit.gallery.indexes import concrete, localai_like, meta, reading

MINE = reading(concrete("whisper", "mine:1"), concrete("org__tts", "mine:2"), name="Mine")
THEIRS = reading(concrete("whisper", "theirs:1"), concrete("other", "theirs:2"), name="theirs")


def uri(name: str) -> str | None:
    found = find((MINE, THEIRS), name)
    return found.entry.uri if found else None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("whisper", "mine:1"),
        ("WHISPER", "mine:1"),
        ("other", "theirs:2"),
        ("mine@whisper", "mine:1"),
        ("theirs@whisper", "theirs:1"),
        ("THEIRS@Whisper", "theirs:1"),
        ("mine@other", None),
        ("nowhere@whisper", None),
        ("org/tts", "mine:2"),
        ("mine@org/tts", "mine:2"),
        ("", None),
        ("@", None),
    ],
)
def test_the_first_gallery_wins_unless_one_is_named(name: str, expected: str | None) -> None:
    assert uri(name) == expected


def test_an_alias_means_concrete_entries_of_one_gallery() -> None:
    first = reading(meta("tts", default="cpu-tts"), concrete("cpu-tts", alias="TTS"), name="first")
    second = reading(concrete("cuda12-tts", alias="tts"), name="second")

    assert [found.entry.name for found in sharing_alias((first, second), "tts")] == ["cpu-tts"]
    assert [found.entry.name for found in sharing_alias((first, second), "second@tts")] == ["cuda12-tts"]
    assert sharing_alias((first, second), "") == ()


def test_search_shows_builds_for_every_kind_of_machine() -> None:
    names = [found.entry.name for found in search((localai_like(),), "LLAMA cpp")]

    assert {"llama-cpp", "cuda12-llama-cpp", "rocm-llama-cpp", "metal-llama-cpp"} <= set(names)
    assert "vllm" not in names


def test_hidden_entries_are_found_by_name_only() -> None:
    hidden = reading(GalleryEntry(name="echo", line=1, uri="builtin:echo", tags=("hidden",)))

    assert search((hidden,), "") == ()
    assert find((hidden,), "echo") is not None
