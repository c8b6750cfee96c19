"""Processes we started, with all they started in turn: known by marks, sessions and parents, never by a pid.

As a program this is the reaper, which ends those that have no other owner. A bare interpreter runs this very
file, so it imports the standard library only, and psutil where there is no /proc.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

_INSTANCE = "REMUDA_PROCESS"
_OWNER = "REMUDA_PROCESS_OWNER"
_SWEEP_LIMIT_S = 30.0
_SWEEP_PAUSE_S = 0.05
_SWEEPS_IN_VAIN = 3  # A process that is just executing a program shows no mark for a moment.
_NAMES_BYTES_MAX = 64 * 1024


class Identity(NamedTuple):
    """One process and no other: a pid is used again, but not with the same start."""

    pid: int
    started: str


class Mark(NamedTuple):
    """What every process we start carries in its environment, and all it starts inherit."""

    owner: str  # The data folder of the worker.
    boot: str  # The life of the worker.
    instance: str  # The process that was started.

    def environ(self) -> Mapping[str, str]:
        return {_INSTANCE: self.instance, _OWNER: f"{self.owner}:{self.boot}"}

    @classmethod
    def among(cls, environ: Mapping[str, str]) -> "Mark | None":
        owner, separator, boot = environ.get(_OWNER, "").rpartition(":")
        return cls(owner, boot, environ.get(_INSTANCE, "")) if separator else None


class Seen(NamedTuple):
    """A process at one moment."""

    identity: Identity
    parent: int
    group: int
    session: int
    zombie: bool
    mark: Mark | None

    @property
    def pid(self) -> int:
        return self.identity.pid


def family(
    everyone: Sequence[Seen], known: Collection[Identity], marked: Callable[[Mark], bool]
) -> list[Seen]:
    """The known and the marked, with everyone in a session of theirs and everyone they started.

    A session keeps the number of the process that opened it, also when that is long gone. Marks can be
    overwritten by a program that changes its title, and parents are lost when they die: each way finds what
    the others miss.
    """
    others = {seen.pid for seen in everyone if seen.identity not in known}
    sessions = {identity.pid for identity in known} - others  # A pid in use again opened another session.
    found = {seen.pid for seen in everyone if seen.identity in known or (seen.mark and marked(seen.mark))}
    found -= {os.getpid()}
    while True:
        sessions |= {seen.session for seen in everyone if seen.pid in found}
        sessions -= {0, os.getsid(0)}  # Those of the kernel, or of another container, and our own.
        joined = {
            seen.pid
            for seen in everyone
            if (seen.parent in found or seen.session in sessions) and seen.pid != os.getpid()
        }
        if joined <= found:
            return [seen for seen in everyone if seen.pid in found]
        found |= joined


def send(target: Identity, number: int) -> None:
    """Signal that very process, if it still is there and ours to signal."""
    if started(target.pid) == target.started:
        try:
            os.kill(target.pid, number)
        except (ProcessLookupError, PermissionError):
            return


if sys.platform == "linux":

    def everyone() -> list[Seen]:
        """All processes that can be seen, without those of the kernel."""
        found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
        return [seen for seen in found if seen is not None]

    def look(pid: int) -> Seen | None:
        status = _status(pid)
        if status is None:
            return None
        state, parent, group, session, began = status
        return Seen(Identity(pid, began), parent, group, session, state in "ZX", Mark.among(_environ(pid)))

    def started(pid: int) -> str | None:
        """When it started, in units of the system's choice; None when there is no such process."""
        status = _status(pid)
        return status and status[4]

    def _status(pid: int) -> tuple[str, int, int, int, str] | None:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                text = file.read()
        except OSError:
            return None
        # The program's name stands in parentheses and may hold any character.
        words = text[text.rindex(b")") + 2 :].decode("ascii").split()
        return words[0], int(words[1]), int(words[2]), int(words[3]), words[19]

    def _environ(pid: int) -> Mapping[str, str]:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                text = file.read()
        except OSError:  # Another user's, or gone.
            return {}
        ours = (entry for entry in text.split(b"\0") if entry.startswith(_INSTANCE.encode()))
        return dict(entry.decode(errors="replace").partition("=")[::2] for entry in ours)

else:
    import psutil

    def everyone() -> list[Seen]:
        """All processes that can be seen."""
        found = (look(pid) for pid in psutil.pids())
        return [seen for seen in found if seen is not None]

    def look(pid: int) -> Seen | None:
        try:
            process = psutil.Process(pid)
            zombie = process.status() == psutil.STATUS_ZOMBIE
            identity = Identity(pid, str(process.create_time()))
            group, session = os.getpgid(pid), os.getsid(pid)
            return Seen(identity, process.ppid(), group, session, zombie, Mark.among(_environ(process)))
        except (psutil.Error, OSError):
            return None

    def started(pid: int) -> str | None:
        """When it started, in units of the system's choice; None when there is no such process."""
        try:
            return str(psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def _environ(process: psutil.Process) -> Mapping[str, str]:
        try:
            environ: Mapping[str, str] = process.environ()
        except (psutil.Error, OSError):
            return {}
        return environ


def _main() -> None:
    """Wait until the worker at the other end of standard input is no more, then kill what it left behind."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    owner, boot = sys.argv[1:3]
    known: set[Identity] = set()
    for line in _lines():
        verb, pid, began = line.split()
        (known.add if verb == "+" else known.discard)(Identity(int(pid), began))
    sys.exit(0 if _swept(known, lambda mark: mark[:2] == (owner, boot)) else 1)


def _lines() -> Iterator[str]:
    rest = b""
    while read := os.read(0, _NAMES_BYTES_MAX):
        *lines, rest = (rest + read).split(b"\n")
        yield from (line.decode("ascii") for line in lines)


def _swept(known: set[Identity], marked: Callable[[Mark], bool]) -> bool:
    """Whether nothing is left."""
    deadline = time.monotonic() + _SWEEP_LIMIT_S
    in_vain = 0
    while in_vain < _SWEEPS_IN_VAIN and time.monotonic() < deadline:
        left = [seen.identity for seen in family(everyone(), known, marked) if not seen.zombie]
        known.update(left)
        in_vain = 0 if left else in_vain + 1
        for identity in left:
            send(identity, signal.SIGKILL)
        time.sleep(_SWEEP_PAUSE_S)  # noqa: TID251 - a bare interpreter without an event loop
    return in_vain == _SWEEPS_IN_VAIN


if __name__ == "__main__":
    _main()
