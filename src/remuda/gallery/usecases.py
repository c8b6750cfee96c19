"""What backends are for, as the tags of their gallery entries say. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from remuda.gallery.model import Reading, everything

_BY_TAG: Final[Mapping[str, tuple[str, ...]]] = {  # Galleries do not agree on words.
    "llm": ("chat", "completion"),
    "text-to-text": ("chat", "completion"),
    "text-generation": ("chat", "completion"),
    "chat": ("chat",),
    "multimodal": ("vision",),
    "vision": ("vision",),
    "image-to-text": ("vision",),
    "embeddings": ("embeddings",),
    "embedding": ("embeddings",),
    "rerank": ("rerank",),
    "reranker": ("rerank",),
    "text-to-image": ("image",),
    "image-generation": ("image",),
    "text-to-video": ("video",),
    "video-generation": ("video",),
    "audio-transcription": ("transcript",),
    "speech-to-text": ("transcript",),
    "text-to-speech": ("tts",),
    "tts": ("tts",),
    "text-to-audio": ("sound_generation",),
    "sound-generation": ("sound_generation",),
    "music-generation": ("sound_generation",),
    "vad": ("vad",),
    "voice-activity-detection": ("vad",),
    "object-detection": ("detection",),
    "token-classification": ("token_classify",),
}


def usecases(readings: Sequence[Reading]) -> dict[str, list[str]]:
    """By each backend's name; empty where its tags tell nothing. The first gallery that has a name counts."""
    told: dict[str, list[str]] = {}
    for found in everything(readings):
        told.setdefault(found.entry.name, _told(found.entry.tags))
    return told


def _told(tags: Iterable[str]) -> list[str]:
    return sorted({usecase for tag in tags for usecase in _BY_TAG.get(tag.lower(), ())})
