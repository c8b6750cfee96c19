"""Which processes of this machine run from a folder, whoever started them. It ends none."""

from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class RunningProgram:
    pid: int
    name: str


def program_running_in(folder: Path) -> RunningProgram | None:
    """One that works in the folder or runs a program of it, also if the folder was moved since. Those of
    other users that may not be looked at do not count. Blocks while it looks at everybody."""
    real = folder.resolve()
    for process in psutil.process_iter(["name", "cwd", "exe"]):
        places = (process.info["cwd"], process.info["exe"])
        if any(place and Path(place).is_relative_to(real) for place in places):
            return RunningProgram(process.pid, process.info["name"])
    return None
