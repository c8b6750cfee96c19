"""Everything a detector may touch, as one small protocol, and the real machine behind it.

Detectors reach the outside through a Host alone, so that a recorded machine can stand in for a real one.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from remuda.worker.hardware.model import Capacity
from remuda.worker.hardware.nvml import Nvml, SystemNvml

_READ_BYTES_MAX = 1 << 20
_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")  # 18 digits always fit a signed 64-bit column.


class Host(Protocol):
    """A machine to look at. Only `nvml` may raise (`NvmlFailed`); for the rest, absent is an answer."""

    @property
    def system(self) -> str:
        """linux, darwin or windows."""
        ...

    @property
    def machine(self) -> str:
        """The processor family in the system's own spelling (x86_64, aarch64...)."""
        ...

    @property
    def cpu_count(self) -> int: ...

    @property
    def environ(self) -> Mapping[str, str]: ...

    def read_text(self, path: str) -> str | None: ...

    def exists(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> Sequence[str]:
        """Names in sorted order; none when there is no such folder."""
        ...

    def run(self, argv: Sequence[str], timeout: timedelta) -> str | None:
        """The command's output, or None when it is missing, fails or is not done in time."""
        ...

    def disk_usage(self, path: str) -> Capacity | None: ...

    def memory(self) -> Capacity | None:
        """RAM as the system's own interface tells it, for systems without /proc/meminfo."""
        ...

    def nvml(self) -> Nvml:
        """NVIDIA's management library, kept open from the first call on."""
        ...


class SystemHost:
    """The machine this process runs on. NVML stays initialised for the life of this object."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None

    @property
    def system(self) -> str:
        return platform.system().lower()

    @property
    def machine(self) -> str:
        return platform.machine()

    @property
    def cpu_count(self) -> int:
        if hasattr(os, "sched_getaffinity"):  # What this process may use, where the system tells.
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    @property
    def environ(self) -> Mapping[str, str]:
        return os.environ

    def read_text(self, path: str) -> str | None:
        try:
            with open(path, "rb") as file:
                return file.read(_READ_BYTES_MAX).decode(errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        try:
            return Path(path).exists()
        except OSError:
            return False

    def list_dir(self, path: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(path))
        except OSError:
            return ()

    def run(self, argv: Sequence[str], timeout: timedelta) -> str | None:
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout.total_seconds(),
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.decode(errors="replace")

    def disk_usage(self, path: str) -> Capacity | None:
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return None
        return Capacity(usage.total, usage.free)

    def memory(self) -> Capacity | None:
        import psutil  # Here, because Linux never needs it and an idle worker should be small.

        reading = psutil.virtual_memory()
        return Capacity(reading.total, reading.available)

    def nvml(self) -> Nvml:
        if self._nvml is None:
            self._nvml = SystemNvml()
        return self._nvml


def read_line(host: Host, path: str) -> str:
    """A one-line file without its line end (device tree texts end in NUL); empty when there is none."""
    return (host.read_text(path) or "").strip(" \t\r\n\0")


def read_number(host: Host, path: str) -> int | None:
    """A whole, non-negative number, or None for anything else: "max", garbage, no such file."""
    text = read_line(host, path)
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else None
