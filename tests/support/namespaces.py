"""Machines on a network that exists only for a test: Linux network namespaces. Needs root."""

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_CLONE_NEWNET: Final = 0x40000000  # <linux/sched.h>; Python has os.unshare from 3.12 on.


class Machine:
    """A network of its own for whatever `run` calls, and for the processes that this starts.

    A namespace belongs to a thread, so one thread does it all."""

    def __init__(self, address: str, thread: ThreadPoolExecutor) -> None:
        self.address = address
        self._thread = thread
        self.namespace = f"/proc/{os.getpid()}/task/{thread.submit(threading.get_native_id).result()}/ns/net"
        self.ip("link", "set", "lo", "up")

    def run(self, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        return self._thread.submit(work, *arguments, **named).result()

    def ip(self, *words: str) -> None:
        self.run(subprocess.run, ["ip", *words], check=True)

    def drop_all_for(self, other: "Machine") -> None:
        """As if it had vanished: nothing that it sends to the other arrives, and nobody is told."""
        self.ip("route", "add", "blackhole", f"{other.address}/32")


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Linked by a cable."""
    with (
        ThreadPoolExecutor(1, initializer=_unshare) as one,
        ThreadPoolExecutor(1, initializer=_unshare) as two,
    ):
        left, right = Machine("10.77.0.1", one), Machine("10.77.0.2", two)
        left.ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", right.namespace)
        for machine in (left, right):
            machine.ip("address", "add", f"{machine.address}/30", "dev", "cable")
            machine.ip("link", "set", "cable", "up")
        yield left, right


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "no network namespace")
