"""What sets families of backends apart, as far as it is known by their names. Pure."""

from remuda.models.config import ModelConfig


def is_llama(config: ModelConfig) -> bool:
    """Served by llama.cpp or one of its kin, which is also what serves a model that names no backend."""
    return not config.backend or "llama" in config.backend
