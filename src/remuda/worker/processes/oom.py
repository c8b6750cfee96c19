"""How often the kernel has killed a process because memory ran out, where it can be told (Linux)."""

import re
from collections.abc import Iterator
from pathlib import Path

_GROUPS = re.compile(r"^[0-9]+:([^:]*):/(.*)$", re.MULTILINE)
_COUNT = re.compile(r"^oom_kill ([0-9]{1,18})$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int | None:
    """Out-of-memory kills so far in this process's control group, or else on the whole machine; None when
    neither can be told. Backends run in the worker's own group."""
    for file in (*_of_own_group(root), root / "proc/vmstat"):
        if count := _COUNT.search(_text(file)):
            return int(count[1])
    return None


def _of_own_group(root: Path) -> Iterator[Path]:
    for controllers, group in _GROUPS.findall(_text(root / "proc/self/cgroup")):
        if not controllers:
            yield root / "sys/fs/cgroup" / group / "memory.events"
        elif "memory" in controllers.split(","):  # The older hierarchy.
            yield root / "sys/fs/cgroup/memory" / group / "memory.oom_control"


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
