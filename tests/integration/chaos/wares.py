"""The backends that are offered: a gallery, and images of several versions of which one does not start."""

import sys
from pathlib import Path
from typing import Final

from tests.integration.running import light_backend
from tests.support.images import BuiltImage, Pusher, image, layer, noise_layer

TAG: Final = "latest"
_RUN: Final = '#!/bin/sh\nexec {python} -I -S "$(dirname "$0")/light_backend.py" "$2"\n'
_BROKEN: Final = "#!/bin/sh\necho 'a library is missing' >&2\nexit 7\n"


def light(version: int, size: int = 1000) -> BuiltImage:
    """It starts in a moment. Other versions are other bytes, of that size."""
    files = {
        "run.sh": _RUN.format(python=sys.executable).encode(),
        "light_backend.py": Path(light_backend.__file__).read_bytes(),
    }
    return image([layer(files), noise_layer(size, version)])


def broken(version: int) -> BuiltImage:
    """It can be installed, and does not start."""
    return image([layer({"run.sh": _BROKEN.encode()}), noise_layer(1000, version)])


class Wares:
    """What is in the registry, reached by the machines at another address than it is filled."""

    def __init__(self, pusher: Pusher, reached_at: str) -> None:
        self._pusher = pusher
        self._reached_at = reached_at

    def gallery(self, names: tuple[str, ...]) -> str:
        """Each of them in one build for all machines."""
        entries = (
            f"- name: {name}\n  alias: {name}\n  capabilities: {{default: {build(name)}}}\n"
            f"- name: {build(name)}\n  alias: {name}\n  uri: {self._reached_at}/{name}:{TAG}\n"
            for name in names
        )
        return "".join(entries)

    def offer(self, name: str, built: BuiltImage) -> str:
        """From now on the tag stands for this; its digest."""
        self._pusher.push(name, TAG, built)
        return built.manifest.digest


def build(name: str) -> str:
    return f"cpu-{name}"
