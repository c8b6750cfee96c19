"""What one process writes, taken from its two pipes by the event loop a little at a time."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

import structlog

from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.log_lines import OutputStream

log = structlog.get_logger(__name__)

_READ_BYTES = 64 * 1024  # At one go: whoever floods waits for its turn like everything else on the loop.
_LAST_READS_MAX = 16  # As much as the largest pipe holds, 1 MiB.


class Sink(Protocol):
    """Where the output of one process goes. Takes bytes as they come and returns at once."""

    def stdout(self, data: bytes) -> None: ...

    def stderr(self, data: bytes) -> None: ...

    def tail(self, stream: OutputStream, lines: int) -> Sequence[str]: ...

    def close(self) -> None: ...


class Logs(Protocol):
    def open(self, key: ProcessKey, instance: str) -> Sink: ...


class Output:
    """Two pipes on their way to a sink. `stdout` and `stderr` are for the process to write to."""

    def __init__(self, sink: Sink) -> None:
        """Raises OSError when this process has too many files open."""
        self._sink = sink
        with ExitStack() as undone:
            undone.callback(sink.close)
            self._out = _Pipe(sink.stdout)
            undone.callback(self._out.finish)
            undone.callback(self._out.close_entrance)
            self._err = _Pipe(sink.stderr)
            undone.pop_all()
        self.stdout, self.stderr = self._out.entrance, self._err.entrance

    def handed_over(self) -> None:
        """The process holds its ends now; with ours open no pipe would ever end."""
        self._out.close_entrance()
        self._err.close_entrance()

    def finish(self) -> None:
        """Pass on what the process left in its pipes, and let go of them whoever else holds them."""
        self.handed_over()
        self._out.finish()
        self._err.finish()
        self._sink.close()

    def tail(self, lines: int) -> Sequence[str]:
        """The last lines of stderr."""
        return self._sink.tail(OutputStream.STDERR, lines)


class _Pipe:
    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._exit, self.entrance = os.pipe()
        self._entered = False
        self._ended = False
        os.set_blocking(self._exit, False)
        self._loop.add_reader(self._exit, self._read)

    def close_entrance(self) -> None:
        if not self._entered:
            self._entered = True
            os.close(self.entrance)

    def finish(self) -> None:
        for _ in range(_LAST_READS_MAX):  # A grandchild may go on writing for ever.
            if not self._read():
                break
        self._end()

    def _read(self) -> bool:
        """Whether there may be more at once."""
        if self._ended:
            return False
        try:
            data = os.read(self._exit, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        try:
            self._take(data)
        except Exception:  # That costs lines of a log, not the process.
            log.exception("process_output_lost")
        return True

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._exit)
            os.close(self._exit)
