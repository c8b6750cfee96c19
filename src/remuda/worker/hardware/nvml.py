"""NVIDIA's management library as a small protocol, and pynvml behind it. The only importer of pynvml.

Every call may fail by itself (old driver, lost card, no permission) and says so with NvmlFailed.
"""

from collections.abc import Sequence
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
            except NvmlFailed:  # An empty place, or a slice that belongs to somebody else.
                continue
            found.append(_SystemDevice(self._library, handle))
        return found
