"""Models as Ollama's clients list and show them, from what is known of their files and configurations: what
is not known is left out, or is an empty text. Pure.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import UNSET, Struct, UnsetType, field

from remuda.gateway.ollama.rendering import instant
from remuda.models.config import ModelConfig
from remuda.models.files import Manifest
from remuda.models.gguf import GgufHeader, ModelFacts
from remuda.scheduler.catalogue import Catalogued
from remuda.wire.serving import ReplicaView

API_LEVEL: Final = "0.12.11"
"""Of which release of Ollama this API is, as far as it goes: clients look at it before they use something."""
_NEVER: Final = "9999-12-31T23:59:59Z"
_SHA256: Final = "sha256:"
_DIGEST_CHARS: Final = 64


class OllamaDetails(Struct):
    format: str = ""
    family: str = ""
    families: list[str] = field(default_factory=list)
    parameter_size: str = ""
    quantization_level: str = ""
    parent_model: str = ""


class OllamaListed(Struct):
    name: str
    model: str
    modified_at: str
    details: OllamaDetails
    size: int | UnsetType = UNSET
    digest: str | UnsetType = UNSET


class OllamaModels(Struct):
    models: list[OllamaListed]


class OllamaLoaded(Struct):
    name: str
    model: str
    details: OllamaDetails
    expires_at: str  # Far in the future: never.
    size: int | UnsetType = UNSET  # In memory, of all its replicas.
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    digest: str | UnsetType = UNSET


class OllamaLoadedModels(Struct):
    models: list[OllamaLoaded]


class OllamaShown(Struct):
    modified_at: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]
    parameters: str = ""
    template: str = ""
    system: str | UnsetType = UNSET


class OllamaVersion(Struct):
    version: str  # Of Ollama's API.
    remuda: str  # Our own.


def listed(name: str, model: Catalogued | None, created: int) -> OllamaListed:
    """By a name that it has here, or that is another one's for it. `model`: None while its configuration is
    not known; `created` in Unix seconds."""
    if model is None:
        return OllamaListed(name, name, _modified(None, created), OllamaDetails())
    changed = _modified(model.stored.updated_at, created)
    manifest = model.stored.manifest
    size = model.weights.size_bytes if manifest is None else manifest.size
    return OllamaListed(
        name, name, changed, details(model.weights.facts), size or UNSET, digest(manifest) or UNSET
    )


def _modified(at: datetime | None, created: int) -> str:
    return instant(at or datetime.fromtimestamp(created, UTC))


def details(facts: ModelFacts | None) -> OllamaDetails:
    if facts is None:
        return OllamaDetails()
    family = facts.layout.architecture
    size = human_count(facts.parameters)
    return OllamaDetails(facts.format, family, [family] if family else [], size, facts.precision)


_UNITS: Final = ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K"))


def human_count(parameters: int) -> str:
    """As Ollama writes it: 134.52M, 8.0B."""
    for unit, letter in _UNITS:
        if parameters >= unit:
            share = parameters / unit
            return f"{share:.1f}{letter}" if unit > 1_000_000 else f"{share:.2f}{letter}"
    return str(parameters) if parameters else ""


def digest(manifest: Manifest | None) -> str:
    """By which a client tells that a model has changed: of what it was installed from, if that has one, else
    of its files. Empty: people brought them, and they have not been hashed."""
    if manifest is None:
        return ""
    revision = manifest.revision.removeprefix(_SHA256)
    if len(revision) == _DIGEST_CHARS:
        return revision
    if len(manifest.files) == 1:
        return manifest.files[0].sha256
    together = "".join(f"{one.path}:{one.sha256}\n" for one in manifest.files)
    return hashlib.sha256(together.encode()).hexdigest()


def loaded(
    name: str, model: Catalogued | None, replicas: Sequence[ReplicaView], context: int
) -> OllamaLoaded:
    """All replicas of one model together."""
    ends = [one.unloads_at for one in replicas]
    latest = max((at for at in ends if at is not None), default=None)
    never = latest is None or None in ends
    size = sum(one.memory_bytes for one in replicas)
    return OllamaLoaded(
        name,
        name,
        details(None if model is None else model.weights.facts),
        _NEVER if never or latest is None else instant(latest),
        size or UNSET,
        sum(one.memory_bytes for one in replicas if one.in_vram) if size else UNSET,
        context or UNSET,
        (digest(None if model is None else model.stored.manifest)) or UNSET,
    )


def shown(model: Catalogued, context: int, created: int) -> OllamaShown:
    config, facts = model.config, model.weights.facts
    return OllamaShown(
        _modified(model.stored.updated_at, created),
        details(facts),
        {} if facts is None else _model_info(facts),
        capabilities(config, facts),
        _parameters(config, context),
        config.template.chat or config.template.chat_message,
        config.system_prompt or UNSET,
    )


def _model_info(facts: ModelFacts) -> dict[str, str | int]:
    layout = facts.layout
    family = layout.architecture
    said: dict[str, str | int] = {
        "general.architecture": family,
        "general.basename": layout.name,
        "general.parameter_count": facts.parameters,
        f"{family}.context_length": layout.context_length,
        f"{family}.block_count": layout.block_count,
        f"{family}.embedding_length": layout.embedding_length,
        f"{family}.attention.head_count": layout.head_count,
        f"{family}.attention.head_count_kv": _heads(layout),
        f"{family}.vocab_size": layout.vocab_size,
        f"{family}.expert_count": layout.expert_count,
    }
    known = {name: value for name, value in said.items() if value}
    return known if layout.file_type is None else {**known, "general.file_type": layout.file_type}


def _heads(layout: GgufHeader) -> int:
    return layout.head_counts_kv[0] if len(set(layout.head_counts_kv)) == 1 else 0


def capabilities(config: ModelConfig, facts: ModelFacts | None) -> list[str]:
    """What it can be asked for here. Tools can be of whatever chats: where a model's template knows none, its
    answers are kept to a grammar. Whether it thinks is not known of a file."""
    if config.embeddings:
        return ["embedding"]
    if config.reranking:
        return []
    uses = config.known_usecases
    can = ["completion"]
    if not uses or "chat" in uses:
        can.append("tools")
    sees = facts is not None and facts.layout.sees
    if config.mmproj or "vision" in uses or sees:
        can.append("vision")
    return can


_PARAMETER_CHARS: Final = 30


def _parameters(config: ModelConfig, context: int) -> str:
    """As a Modelfile has them: what is in force for requests that do not say otherwise, and the context that
    it is loaded for."""
    said = config.parameters
    known: dict[str, object] = {
        "num_ctx": context or None,
        "num_predict": said.max_tokens,
        "temperature": said.temperature,
        "top_p": said.top_p,
        "top_k": said.top_k,
        "min_p": said.min_p,
        "repeat_penalty": said.repeat_penalty,
        "seed": said.seed,
    }
    lines = [f"{name:<{_PARAMETER_CHARS}} {value}" for name, value in known.items() if value is not None]
    stops = [f'{"stop":<{_PARAMETER_CHARS}} "{word}"' for word in config.stopwords]
    return "\n".join((*lines, *stops))
