"""How many threads a model computes with, where its configuration does not say.

The engine's threads wait for each other after every layer, and while they wait they spin. With as many
threads as cores, one that has to share its core with another program holds up all others: a token then takes
ten times as long. With a core to spare the machine's other work costs its share, and no more.
"""

import math
import os
from typing import Final

import psutil

_QUOTA: Final = "/sys/fs/cgroup/cpu.max"


def threads_for(cores: float, busy: float) -> int:
    """For so many cores, so many of which other programs keep busy. Half of the cores at least: what is busy
    when a model is loaded may be idle soon."""
    spare = max(1, math.ceil(busy - 0.5))
    return max(1, math.floor(cores / 2), math.floor(cores) - spare)


def usual_threads() -> int:
    """By this machine, as it is now."""
    return threads_for(_cores(), _busy_cores())


def _cores() -> float:
    """Those that this process may use. Two threads of one core share what computes, so they count as one."""
    logical = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    physical = psutil.cpu_count(logical=False) or logical
    return min(usable, physical, _quota())


def _quota() -> float:
    """What a container may use, in cores."""
    try:
        with open(_QUOTA) as file:
            quota, period = file.read().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _busy_cores() -> float:
    """On average over the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0
