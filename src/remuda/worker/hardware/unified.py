"""NVIDIA chips whose GPU works in the machine's RAM: Tegra boards (Jetson) and the GB10 (DGX Spark)."""

import re

from remuda.worker.hardware.host import Host, read_line
from remuda.worker.hardware.model import Capacity, Gpu, GpuFindings

_SOCS = ("/sys/devices/soc0", "/sys/devices/soc1")  # soc0 may be the firmware's own entry.
_RELEASE_FILE = "/etc/nv_tegra_release"
_BOARD_MODEL = "/proc/device-tree/model"

# The kernel gives a Tegra's chip id in decimal.
_COMPUTE_CAPABILITIES = {
    "33": (5, 3),  # Tegra210: Nano, TX1
    "24": (6, 2),  # Tegra186: TX2
    "25": (7, 2),  # Tegra194: Xavier
    "35": (8, 7),  # Tegra234: Orin
    "38": (11, 0),  # Tegra264: Thor
}


def detect(host: Host, ram: Capacity) -> GpuFindings:
    """A Tegra board's own GPU, also where NVML is missing."""
    if not is_tegra(host):
        return GpuFindings()
    soc = _tegra_soc(host)
    name = read_line(host, _BOARD_MODEL) or read_line(host, f"{soc}/machine") or "NVIDIA Tegra"
    compute_capability = _COMPUTE_CAPABILITIES.get(read_line(host, f"{soc}/soc_id"))
    return GpuFindings((gpu(name, ram, compute_capability),), _l4t_version(host))


def is_tegra(host: Host) -> bool:
    # Containers hide the device tree and the release file, not the soc entry.
    return (
        _tegra_soc(host) is not None
        or host.exists(_RELEASE_FILE)
        or read_line(host, _BOARD_MODEL).startswith("NVIDIA Jetson")
    )


def is_known_chip(name: str) -> bool:
    """Whether this GPU shares RAM even where its driver says otherwise, as some do for the GB10."""
    return name.endswith("GB10")


def gpu(name: str, ram: Capacity, compute_capability: tuple[int, int] | None) -> Gpu:
    return Gpu("nvidia", name, ram.total, ram.available, compute_capability, unified=True)


def _tegra_soc(host: Host) -> str | None:
    return next((soc for soc in _SOCS if read_line(host, f"{soc}/family") == "Tegra"), None)


def _l4t_version(host: Host) -> str:
    release = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", host.read_text(_RELEASE_FILE) or "")
    return f"{release[1]}.{release[2]}" if release else ""
