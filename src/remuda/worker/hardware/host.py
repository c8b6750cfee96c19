"""Everything a detector may touch, as small protocols, and the real machine behind them, NVIDIA's
management library included. The only importer of pynvml.

Detectors reach the outside through a Host alone, so that a recorded machine can stand in for a real one.
Every NVML call may fail (old driver, lost card, no permission) and says so with NvmlFailed.
"""

import os
import platform
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from remuda.worker.hardware.model import Capacity


class NvmlFailed(Exception):
    """The library or the driver refused; the text is its own reason."""


class NvmlUnsupported(NvmlFailed):
    """This GPU does not know this question, and never will."""


class NvmlDevice(Protocol):
    def name(self) -> str: ...

    def memory(self) -> Capacity: ...

    def compute_capability(self) -> tuple[int, int]: ...

    def slices(self) -> Sequence["NvmlDevice"] | None:
        """The parts of a GPU in MIG mode, perhaps none; None when it is used whole."""
        ...

    def processes(self) -> Sequence[tuple[int, int | None]]:
        """Those that compute on it, by pid, with the bytes that each takes; None: the driver does not say."""
        ...

    def graphics_processes(self) -> Sequence[tuple[int, int | None]]:
        """The same of those that draw."""
        ...

    def busy(self) -> Sequence[tuple[int, int]]:
        """Processes that kept it busy in the last seconds, by pid, each with its share in per cent."""
        ...


class Nvml(Protocol):
    def driver_version(self) -> str: ...

    def count(self) -> int: ...

    def device(self, index: int) -> NvmlDevice: ...


class SystemNvml:
    """pynvml, imported and initialised when this is made, never shut down: later readings are cheap."""

    def __init__(self) -> None:
        self._library = _Library()
        self._library.call("nvmlInit")

    def driver_version(self) -> str:
        return str(self._library.call("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        return int(self._library.call("nvmlDeviceGetCount"))

    def device(self, index: int) -> NvmlDevice:
        return _SystemDevice(self._library, self._library.call("nvmlDeviceGetHandleByIndex", index))


class _Library:
    def __init__(self) -> None:
        import pynvml  # Large: machines without an NVIDIA driver never come here.

        self._pynvml = pynvml

    def call(self, function: str, *arguments: object) -> Any:
        try:
            return getattr(self._pynvml, function)(*arguments)
        except self._pynvml.NVMLError as error:
            kind = NvmlUnsupported if isinstance(error, self._pynvml.NVMLError_NotSupported) else NvmlFailed
            raise kind(str(error)) from error


class _SystemDevice:
    def __init__(self, library: _Library, handle: object) -> None:
        self._library = library
        self._handle = handle

    def name(self) -> str:
        return str(self._library.call("nvmlDeviceGetName", self._handle))

    def memory(self) -> Capacity:
        # `free` and not `total - used`: versions of this call disagree on whether `used` holds what the
        # driver keeps for itself, and agree on `free`.
        reading = self._library.call("nvmlDeviceGetMemoryInfo", self._handle)
        return Capacity(int(reading.total), int(reading.free))

    def compute_capability(self) -> tuple[int, int]:
        major, minor = self._library.call("nvmlDeviceGetCudaComputeCapability", self._handle)
        return int(major), int(minor)

    def slices(self) -> Sequence[NvmlDevice] | None:
        current, _pending = self._library.call("nvmlDeviceGetMigMode", self._handle)
        if not current:
            return None
        places = self._library.call("nvmlDeviceGetMaxMigDeviceCount", self._handle)
        found: list[NvmlDevice] = []
        for place in range(places):
            try:
                handle = self._library.call("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, place)
            except NvmlFailed:  # An empty place, or a slice that belongs to another user.
                continue
            found.append(_SystemDevice(self._library, handle))
        return found

    def processes(self) -> Sequence[tuple[int, int | None]]:
        found = self._library.call("nvmlDeviceGetComputeRunningProcesses", self._handle)
        return [(int(one.pid), one.usedGpuMemory) for one in found]

    def graphics_processes(self) -> Sequence[tuple[int, int | None]]:
        found = self._library.call("nvmlDeviceGetGraphicsRunningProcesses", self._handle)
        return [(int(one.pid), one.usedGpuMemory) for one in found]

    def busy(self) -> Sequence[tuple[int, int]]:
        try:
            samples = self._library.call("nvmlDeviceGetProcessUtilization", self._handle, 0)
        except NvmlUnsupported:
            raise
        except NvmlFailed:  # That there are none is a failure, too.
            return ()
        newest = max((int(one.timeStamp) for one in samples), default=0)
        shares = defaultdict[int, list[int]](list)
        for one in samples:
            if newest - int(one.timeStamp) <= _BUSY_US:
                shares[int(one.pid)].append(int(one.smUtil))
        return [(pid, sum(each) // len(each)) for pid, each in shares.items()]


_BUSY_US = 5_000_000
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

    def device(self, path: str) -> int | None:
        """The number under which the system knows the file system."""
        ...

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

    def device(self, path: str) -> int | None:
        try:
            return os.stat(path).st_dev
        except OSError:
            return None

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
