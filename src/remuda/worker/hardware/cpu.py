"""The processor: its family, and the name its maker gave it."""

import re
from datetime import timedelta

from remuda.worker.hardware.host import Host, read_line

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MODEL_NAME = re.compile(r"^(?:model name|Model)\s*:\s*(\S.*)$", re.MULTILINE)  # PCs; ARM boards.
_SYSCTL = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
_SYSCTL_TIMEOUT = timedelta(seconds=2)


def architecture(host: Host) -> str:
    """The processor family as OCI platforms spell it."""
    machine = host.machine.lower()
    return _ARCHITECTURES.get(machine, machine)


def model(host: Host) -> str:
    """The processor's name, or the board's where only that is known; empty when neither is."""
    if host.system == "darwin":
        return (host.run(_SYSCTL, _SYSCTL_TIMEOUT) or "").strip()
    named = _MODEL_NAME.search(host.read_text("/proc/cpuinfo") or "")
    return named[1].strip() if named else read_line(host, "/proc/device-tree/model")
