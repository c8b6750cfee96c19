"""The gallery that ships with Remuda, and the galleries used unless others are configured."""

from importlib import resources
from typing import Final

from remuda.gallery.model import Gallery

REMUDA: Final = Gallery(name="remuda", url="builtin:gallery")
LOCALAI: Final = Gallery(
    name="localai",
    url="https://index.localai.io/backends",
    mirrors=("github:mudler/LocalAI/backend/index.yaml@master",),
)
DEFAULT_GALLERIES: Final = (REMUDA, LOCALAI)


def shipped_index() -> bytes:
    return resources.files("remuda.gallery").joinpath("data", "index.yaml").read_bytes()
