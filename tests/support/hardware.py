"""A machine to report on; a test names only what it is about."""

from dataclasses import replace
from typing import Any

from remuda.worker.hardware.model import Gpu, Hardware

PLAIN = Hardware(
    architecture="amd64",
    os="linux",
    cpu_model="a processor",
    cpu_cores=8,
    total_ram=16 << 30,
    available_ram=8 << 30,
    total_disk=1 << 40,
    available_disk=1 << 39,
    gpus=(),
    driver_version="",
    capability="default",
    problems=(),
)
CARD = Gpu("nvidia", "a card", total_vram=24 << 30, available_vram=20 << 30, compute_capability=(8, 9))


def machine(**changes: Any) -> Hardware:
    return replace(PLAIN, **changes)
