"""A machine out of a JSON file, to stand in for a real one. Tests change single files of it by `but`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from remuda.worker.hardware.host import Nvml, NvmlDevice, NvmlFailed, NvmlUnsupported
from remuda.worker.hardware.model import Capacity

FOLDER = Path(__file__).parents[3] / "fixtures" / "hardware"
MODELS_DIR = Path("/data/models")


class RecordedMemory(BaseModel):
    total: int = 0
    free: int = 0
    unsupported: bool = False


class RecordedDevice(BaseModel):
    """One GPU as NVML told it. `broken` makes every question to it fail."""

    name: str = ""
    memory: RecordedMemory
    cc: tuple[int, int]
    slices: list["RecordedDevice"] | None = None
    processes: list[tuple[int, int | None]] = []
    graphics: list[tuple[int, int | None]] = []
    busy: list[tuple[int, int]] | None = []
    broken: bool = False


class RecordedNvml(BaseModel):
    driver: str = ""
    devices: list[RecordedDevice] = []
    error: str = ""  # Why the library cannot be opened at all.


class RecordedMachine(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source: str
    verified: bool
    system: str
    machine: str
    cpu_count: int
    files: dict[str, str]
    commands: dict[str, str] = {}
    disk: dict[str, int]
    memory: dict[str, int] | None = None
    nvml: RecordedNvml = RecordedNvml(error="NVML Shared Library Not Found")


class RealRecording(BaseModel):
    """The shape of a recording made on a real machine with an NVIDIA GPU."""

    source: str
    verified: bool
    machine: str
    driver: str
    count: int
    device0: RecordedDevice
    proc_driver: str
    cuda_dirs: str
    ram: dict[str, float]
    cpus: tuple[int, int]

    def as_machine(self) -> RecordedMachine:
        total, available = (int(self.ram[key]) // 1024 for key in ("total", "available"))
        files = {f"{folder}/version.json": "{}" for folder in self.cuda_dirs.split()}
        files["/proc/driver/nvidia/version"] = self.proc_driver
        files["/proc/meminfo"] = f"MemTotal: {total} kB\nMemAvailable: {available} kB\n"
        return RecordedMachine(
            source=self.source,
            verified=self.verified,
            system="linux",
            machine=self.machine,
            cpu_count=self.cpus[0],
            files=files,
            disk={"total": 1 << 40, "available": 1 << 39},
            nvml=RecordedNvml(driver=self.driver, devices=[self.device0] * self.count),
        )


@dataclass(frozen=True)
class RecordedNvmlDevice:
    told: RecordedDevice

    def _answering(self) -> RecordedDevice:
        if self.told.broken:
            raise NvmlFailed("GPU is lost")
        return self.told

    def name(self) -> str:
        return self._answering().name

    def memory(self) -> Capacity:
        memory = self._answering().memory
        if memory.unsupported:
            raise NvmlUnsupported("Not Supported")
        return Capacity(memory.total, memory.free)

    def compute_capability(self) -> tuple[int, int]:
        return self._answering().cc

    def slices(self) -> Sequence[NvmlDevice] | None:
        parts = self._answering().slices
        return None if parts is None else [RecordedNvmlDevice(part) for part in parts]

    def processes(self) -> Sequence[tuple[int, int | None]]:
        return self._answering().processes

    def graphics_processes(self) -> Sequence[tuple[int, int | None]]:
        return self._answering().graphics

    def busy(self) -> Sequence[tuple[int, int]]:
        busy = self._answering().busy
        if busy is None:
            raise NvmlUnsupported("Not Supported")
        return busy


@dataclass(frozen=True)
class RecordedNvmlLibrary:
    told: RecordedNvml

    def driver_version(self) -> str:
        return self.told.driver

    def count(self) -> int:
        return len(self.told.devices)

    def device(self, index: int) -> NvmlDevice:
        return RecordedNvmlDevice(self.told.devices[index])


@dataclass(frozen=True)
class FixtureHost:
    recorded: RecordedMachine
    environ: Mapping[str, str] = field(default_factory=dict)
    file_system: int | None = None
    cursed: str = ""  # Reading below this path raises, which no Host should do.

    @property
    def system(self) -> str:
        return self.recorded.system

    @property
    def machine(self) -> str:
        return self.recorded.machine

    @property
    def cpu_count(self) -> int:
        return self.recorded.cpu_count

    def read_text(self, path: str) -> str | None:
        if self.cursed and path.startswith(self.cursed):
            raise RuntimeError("cursed")
        return self.recorded.files.get(path)

    def exists(self, path: str) -> bool:
        return path == "/" or any(file == path or file.startswith(f"{path}/") for file in self.recorded.files)

    def list_dir(self, path: str) -> Sequence[str]:
        below = (file.removeprefix(f"{path}/") for file in self.recorded.files if file.startswith(f"{path}/"))
        return sorted({rest.split("/")[0] for rest in below})

    def run(self, argv: Sequence[str], timeout: timedelta) -> str | None:
        return self.recorded.commands.get(" ".join(argv))

    def disk_usage(self, path: str) -> Capacity | None:
        return Capacity(self.recorded.disk["total"], self.recorded.disk["available"])

    def device(self, path: str) -> int | None:
        return self.file_system

    def memory(self) -> Capacity | None:
        memory = self.recorded.memory
        return None if memory is None else Capacity(memory["total"], memory["available"])

    def nvml(self) -> Nvml:
        if self.recorded.nvml.error:
            raise NvmlFailed(self.recorded.nvml.error)
        return RecordedNvmlLibrary(self.recorded.nvml)

    def but(
        self, files: Mapping[str, str | None] | None = None, nvml: RecordedNvml | None = None
    ) -> "FixtureHost":
        """The same machine with some files changed (None: gone) or another NVML."""
        changed = {**self.recorded.files, **(files or {})}
        kept = {path: text for path, text in changed.items() if text is not None}
        update = {"files": kept, "nvml": nvml or self.recorded.nvml}
        return replace(self, recorded=self.recorded.model_copy(update=update))


def fixture_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> FixtureHost:
    content = json.loads((FOLDER / f"{name}.json").read_text())
    if "device0" in content:
        return FixtureHost(RealRecording.model_validate(content).as_machine())
    return FixtureHost(RecordedMachine.model_validate(content))
