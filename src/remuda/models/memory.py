"""How much memory a model takes once it is loaded. Pure, and meant to be a little too much rather than too
little: what was promised to one model is missing for the next."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from remuda.models.config import CONTEXT_DEFAULT_MAX, CONTEXT_FALLBACK, ModelConfig
from remuda.models.gguf import GgufHeader

PROCESS_BYTES: Final = 256 << 20  # The engine itself.
GPU_PROCESS_BYTES: Final = 640 << 20  # In VRAM: the driver's context, kernels and workspaces of an engine.
BATCH_DEFAULT: Final = 512
EMBEDDING_BATCH_MAX: Final = 8192
CONTEXT_AS_TRAINED: Final = -1
CONTEXT_MIN: Final = 16  # A question and an answer of a word take as much.
CONTEXT_MAX: Final = 1 << 24  # Tokens; the largest published windows have ten million.
CONTEXT_STRETCH_MAX: Final = 8  # Times what it was trained for.
_CONTEXT_STEP: Final = 256  # The cache grows in steps of so many tokens.
_FLOAT_BYTES: Final = 4
_ACTIVATIONS: Final = 8  # Rows as wide as the model that are alive at once for each token of a batch.
_UNKNOWN_SHARE: Final = 5  # Of a model that says nothing of itself: a fifth of its weights comes on top.
_BLOCK: Final = 32
_BLOCK_BYTES: Final = {  # Of 32 numbers in the cache.
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}


class MemoryUse(NamedTuple):
    """What a replica takes of a machine's two memories."""

    vram_bytes: int = 0
    ram_bytes: int = 0


NO_MEMORY: Final = MemoryUse()


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """All zero: not known. `gpu_share`: how much of the weights and of the cache go to a GPU that is used."""

    weights_bytes: int = 0
    kv_cache_bytes: int = 0
    overhead_bytes: int = 0
    gpu_share: float = 1.0

    @property
    def total_bytes(self) -> int:
        """In RAM, all of it."""
        return self.weights_bytes + self.kv_cache_bytes + self.overhead_bytes

    @property
    def on_gpu(self) -> MemoryUse:
        """With a GPU. Layers that stay in RAM are charged there; what a batch takes on its way, to both."""
        layers = self.weights_bytes + self.kv_cache_bytes
        if not layers:
            return NO_MEMORY
        computing = max(self.overhead_bytes - PROCESS_BYTES, 0)
        in_vram = int(layers * self.gpu_share)
        left = layers - in_vram
        return MemoryUse(
            in_vram + computing + GPU_PROCESS_BYTES, PROCESS_BYTES + (left + computing if left else 0)
        )


def context_problem(requested: int | None, trained: int) -> str:
    """Why no model can be loaded for so many tokens; empty: it can. `trained`: tokens it was trained for; 0:
    not known."""
    if not requested or requested == CONTEXT_AS_TRAINED:
        return ""
    if requested < CONTEXT_MIN:
        return (
            f"context_size: {requested} tokens are too few; ask for at least {CONTEXT_MIN}, or leave "
            f"it out for what the model was trained for, up to {CONTEXT_DEFAULT_MAX}"
        )
    if requested > CONTEXT_MAX:
        most = f"at most {CONTEXT_MAX} are accepted"
        return f"context_size: {requested} tokens are more than any model takes; {most}"
    if trained and requested > trained * CONTEXT_STRETCH_MAX:
        return (
            f"context_size: {requested} tokens, but the model was trained for {trained}; at most "
            f"{CONTEXT_STRETCH_MAX} times as many are accepted"
        )
    return ""


def context_warning(requested: int | None, trained: int) -> str:
    """What to know about a context that is accepted; empty: nothing."""
    if not requested or not trained or requested <= trained:
        return ""
    return (
        f"context_size: the model was trained for {trained} tokens; beyond them answers get worse, unless "
        "RoPE scaling is set"
    )


def effective_context(config: ModelConfig, header: GgufHeader | None) -> int:
    """How many tokens the model is loaded for: what is asked for, or else trained for, within reason."""
    trained = header.context_length if header else 0
    requested = config.context_size or 0
    if requested > 0:
        return requested
    if requested < 0:
        return trained or CONTEXT_FALLBACK
    return min(trained, CONTEXT_DEFAULT_MAX) or CONTEXT_FALLBACK


def known_context(config: ModelConfig, header: GgufHeader | None) -> int:
    """The same for people; 0 where it depends on a file that no node has shown yet."""
    if header is None and (config.context_size or 0) <= 0:
        return 0
    return effective_context(config, header)


def padded_context(context: int) -> int:
    """What llama.cpp makes of it: the cache has room for whole steps."""
    return -(-context // _CONTEXT_STEP) * _CONTEXT_STEP


def memory_need(
    header: GgufHeader | None, weights_bytes: int, config: ModelConfig, context: int, parallel: int
) -> MemoryNeed:
    """For `context` tokens, which `parallel` requests share. The weights are those of all its files."""
    if header is None:
        overhead = weights_bytes // _UNKNOWN_SHARE + PROCESS_BYTES if weights_bytes else 0
        return MemoryNeed(weights_bytes, overhead_bytes=overhead)
    return MemoryNeed(
        weights_bytes,
        kv_cache_bytes=_kv_cache(header, config, context),
        overhead_bytes=PROCESS_BYTES + _computing(header, config, context, parallel),
        gpu_share=_gpu_share(header, config),
    )


def _gpu_share(header: GgufHeader, config: ModelConfig) -> float:
    """llama.cpp counts the output as a layer, too. A negative number means all."""
    layers = config.gpu_layers
    if layers is None or layers < 0 or not header.block_count:
        return 1.0
    return min(layers / (header.block_count + 1), 1.0)


def _kv_cache(header: GgufHeader, config: ModelConfig, context: int) -> int:
    tokens = padded_context(context)
    keys = header.key_length * _block_bytes(config.cache_type_k)
    values = header.value_length * _block_bytes(config.cache_type_v)
    return tokens * header.kv_heads * (keys + values) // _BLOCK


def _block_bytes(cache_type: str) -> int:
    return _BLOCK_BYTES.get(cache_type.lower(), _BLOCK_BYTES["f16"])


def _computing(header: GgufHeader, config: ModelConfig, context: int, parallel: int) -> int:
    """What a batch takes on its way: activations, the mask of what it attends to, a score for each token of
    the vocabulary, and the scores that every request keeps."""
    row = _ACTIVATIONS * header.embedding_length + context
    if config.embeddings or config.reranking:  # A text goes through in one piece, and no token is chosen.
        return _FLOAT_BYTES * row * min(context, EMBEDDING_BATCH_MAX)
    batch = min(config.parameters.batch or BATCH_DEFAULT, context)
    return _FLOAT_BYTES * (batch * (row + header.vocab_size) + parallel * header.vocab_size)
