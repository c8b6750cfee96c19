"""The event loop of production, with two things that only a process with many tests needs."""

import os
import sys
from asyncio import Handle, SubprocessProtocol, SubprocessTransport
from asyncio.unix_events import _UnixSubprocessTransport  # type: ignore[attr-defined]
from collections.abc import Callable
from contextvars import Context
from typing import Any

import uvloop


class Loop(uvloop.Loop):
    """Each test has one, but gRPC has one poller for the whole process: it hands on what is left of earlier
    tests, whose loops are closed, and would fail whatever test runs.

    And uvloop starts programs by fork, which copies the page tables of the process: those of thousands of
    collected tests take 30 to 60 ms of CPU each time, so programs are started as `subprocess` does it.
    """

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> Handle:
        if self.is_closed() and callback.__module__ == "grpc._cython.cygrpc":
            return Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)

    async def subprocess_exec(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], SubprocessProtocol],
        *words: str,
        stdin: Any = -1,
        stdout: Any = -1,
        stderr: Any = -1,
        **how: Any,
    ) -> tuple[SubprocessTransport, SubprocessProtocol]:
        if sys.platform != "linux":
            return await super().subprocess_exec(
                protocol_factory, *words, stdin=stdin, stdout=stdout, stderr=stderr, **how
            )
        protocol, connected = protocol_factory(), self.create_future()
        transport = _UnixSubprocessTransport(
            self, protocol, words, False, stdin, stdout, stderr, 0, waiter=connected, **how
        )
        ended = os.pidfd_open(transport.get_pid())

        def reap() -> None:
            self.remove_reader(ended)
            os.close(ended)
            transport._process_exited(transport._proc.wait())

        self.add_reader(ended, reap)
        try:
            await connected
        except BaseException:
            transport.close()
            raise
        return transport, protocol
