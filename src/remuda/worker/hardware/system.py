"""The processor, RAM and disk: the processor's family and name; RAM, or less where a control group (a
container, a systemd unit) allows less; and room on the file system that holds, or will hold, the models.
By which of these several workers of one machine can be told to have the same.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path, PurePosixPath

from remuda.worker.hardware.host import Host, read_line, read_number
from remuda.worker.hardware.model import Capacity

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MODEL_NAME = re.compile(r"^(?:model name|Model)\s*:\s*(\S.*)$", re.MULTILINE)  # PCs; ARM boards.
_SYSCTL = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
_SYSCTL_TIMEOUT = timedelta(seconds=2)


def architecture(host: Host) -> str:
    """The processor family as OCI platforms spell it."""
    machine = host.machine.lower()
    return _ARCHITECTURES.get(machine, machine)


def processor_name(host: Host) -> str:
    """The processor's name, or the board's where only that is known; empty when neither is."""
    if host.system == "darwin":
        return (host.run(_SYSCTL, _SYSCTL_TIMEOUT) or "").strip()
    named = _MODEL_NAME.search(host.read_text("/proc/cpuinfo") or "")
    return named[1].strip() if named else read_line(host, "/proc/device-tree/model")


_MEMINFO_LINE = re.compile(r"^(MemTotal|MemAvailable|MemFree):\s*([0-9]{1,15}) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _CgroupLayout:
    """Where one generation of control groups keeps its memory figures."""

    root: str
    limit: str
    usage: str
    reclaimable: re.Pattern[str]  # Cached files count as usage, but are given up on demand.


_V2 = _CgroupLayout(
    "/sys/fs/cgroup",
    "memory.max",
    "memory.current",
    re.compile(r"^inactive_file ([0-9]{1,18})$", re.MULTILINE),
)
_V1 = _CgroupLayout(
    "/sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    re.compile(r"^total_inactive_file ([0-9]{1,18})$", re.MULTILINE),
)


def read_memory(host: Host) -> Capacity | None:
    """RAM this process may use, or None when it cannot be told."""
    machine = _machine(host)
    if machine is None:
        return None
    total, available = machine.total, machine.available
    for limit in _limits(host):
        total = min(total, limit.total)
        available = min(available, limit.available)
    return Capacity(total, max(0, min(available, total)))


def _machine(host: Host) -> Capacity | None:
    if host.system != "linux":
        return host.memory()
    fields = {
        name: int(kib) * 1024 for name, kib in _MEMINFO_LINE.findall(host.read_text("/proc/meminfo") or "")
    }
    if "MemTotal" not in fields:
        return None
    return Capacity(fields["MemTotal"], fields.get("MemAvailable", fields.get("MemFree", 0)))


def _limits(host: Host) -> Iterator[Capacity]:
    """Every limit this process is under: a group is also bound by the groups around it."""
    for membership in (host.read_text("/proc/self/cgroup") or "").splitlines():
        _, _, controllers_and_path = membership.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        layout = _V2 if controllers == "" else _V1 if "memory" in controllers.split(",") else None
        if layout is None:
            continue
        # A container may see its own group as the root, under whatever path: the walk up ends there.
        own = PurePosixPath(layout.root, path.lstrip("/"))
        for group in (own, *own.parents[: len(own.parts) - len(PurePosixPath(layout.root).parts)]):
            if limit := _limit(host, str(group), layout):
                yield limit


def _limit(host: Host, group: str, layout: _CgroupLayout) -> Capacity | None:
    most = read_number(host, f"{group}/{layout.limit}")
    if most is None:
        return None
    used = read_number(host, f"{group}/{layout.usage}") or 0
    reclaimable = layout.reclaimable.search(host.read_text(f"{group}/memory.stat") or "")
    return Capacity(most, most - used + (int(reclaimable[1]) if reclaimable else 0))


def read_disk(host: Host, models_dir: Path) -> Capacity | None:
    """Usage of the folder's file system; a folder not made yet counts as its nearest existing parent."""
    nearest = _nearest(host, models_dir)
    return None if nearest is None else host.disk_usage(nearest)


def _nearest(host: Host, folder: Path) -> str | None:
    return next((str(path) for path in (folder, *folder.parents) if host.exists(str(path))), None)


_BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""One for all containers on a kernel, and for no other machine."""


def disk_id(host: Host, models_dir: Path) -> str:
    """Of the file system that `read_disk` measures; empty where it cannot be told from others."""
    nearest = _nearest(host, models_dir)
    device = None if nearest is None else host.device(nearest)
    return "" if device is None else _shared_id(host, "disk", device)


def memory_id(host: Host) -> str:
    """Of the machine's whole memory; empty where this process may have only a part, which is its own."""
    machine = _machine(host)
    if machine is None or any(limit.total < machine.total for limit in _limits(host)):
        return ""
    return _shared_id(host, "memory", machine.total)


def _shared_id(host: Host, kind: str, number: int) -> str:
    boot = read_line(host, _BOOT_ID)
    return sha256(f"{boot}/{kind}/{number}".encode()).hexdigest()[:16] if boot else ""
