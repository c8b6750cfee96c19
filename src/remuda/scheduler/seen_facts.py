"""What a model's file says of itself: read here, or as another frontend has written it down.

What is written down counts before what is read here, so that all frontends, with the file or without it,
compute what a model needs from the same. Reading blocks: not for an event loop.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remuda.core.errors import Rejected
from remuda.models.config import ModelConfig
from remuda.models.facts import facts_of
from remuda.models.files import Manifest
from remuda.models.gguf import CutOff, GgufHeader, ModelFacts
from remuda.scheduler.model import SeenFacts, StoredModel


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's file, as far as it says something of itself: on this machine, or as it is written down."""

    size_bytes: int = 0
    header: GgufHeader | None = None
    cut_off: str = ""  # Why it cannot be used: it was not copied to its end.
    facts: ModelFacts | None = None  # What it says of itself.


NOT_HERE: Final = Weights()


def weights_of(facts: ModelFacts) -> Weights:
    return Weights(facts.size_bytes, facts.header, facts=facts)


def read_weights(path: Path, size_bytes: int) -> Weights:
    """A file that says nothing of itself still has a size; a folder's is not known then."""
    try:
        return weights_of(facts_of(path))
    except CutOff as error:
        return Weights(cut_off=str(error))
    except Rejected:
        return Weights(0 if path.is_dir() else size_bytes)


def written_down(config: ModelConfig, stored: StoredModel) -> Weights:
    """By the frontend that installed it, or else by one that found the file in its folder."""
    manifest, seen = stored.manifest, stored.seen
    if manifest is not None and manifest.facts is not None and manifest.described == config.file:
        return weights_of(manifest.facts)
    if seen is not None and seen.file == config.file:
        return weights_of(seen.facts)
    return NOT_HERE


def into_manifest(config: ModelConfig, stored: StoredModel, here: Weights) -> Manifest | None:
    """The manifest with what this machine's files say; None where it has that, or where these are others."""
    manifest = stored.manifest
    if manifest is None or manifest.facts is not None or here.facts is None:
        return None
    if not _lists(manifest, config.file):
        return None
    return manifest.model_copy(update={"facts": here.facts, "described": config.file})


def _lists(manifest: Manifest, file: str) -> bool:
    return any(one.path == file or one.path.startswith(f"{file}/") for one in manifest.files)


def to_write_down(config: ModelConfig, stored: StoredModel, here: Weights, me: str) -> SeenFacts | None:
    """What this frontend has to write down of the file that it has. The first to do so answers for it: other
    frontends may have another file of this name, and would write in turn."""
    if here.facts is None:
        return None
    manifest = stored.manifest
    if manifest is not None and manifest.facts is None and _lists(manifest, config.file):
        return None  # They go into the manifest.
    seen, known = stored.seen, written_down(config, stored)
    mine = seen is not None and (seen.by, seen.file) == (me, config.file)
    if known.facts is not None and not (mine and known.facts != here.facts):
        return None
    return SeenFacts(config.file, me, here.facts)
