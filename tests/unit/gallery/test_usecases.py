"""What backends are for, from the words that galleries use."""

import pytest

from remuda.gallery.model import usecases
from tests.unit.gallery.indexes import concrete, reading


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (("text-to-text", "LLM", "CPU"), ["chat", "completion"]),
        (("audio-transcription",), ["transcript"]),
        (("TTS", "text-to-speech"), ["tts"]),
        (("embeddings", "reranker"), ["embeddings", "rerank"]),
        (("CPU", "GPU"), []),
        ((), []),
    ],
)
def test_tags_tell_what_a_backend_is_for(tags: tuple[str, ...], expected: list[str]) -> None:
    assert usecases([reading(concrete("one", tags=tags))]) == {"one": expected}


def test_the_first_gallery_that_has_a_name_counts_and_hidden_entries_do_not() -> None:
    first = reading(concrete("one", tags=("vad",)), concrete("secret", tags=("hidden", "vad")), name="first")
    second = reading(concrete("one", tags=("tts",)), concrete("two", tags=("tts",)), name="second")
    assert usecases([first, second]) == {"one": ["vad"], "two": ["tts"]}
