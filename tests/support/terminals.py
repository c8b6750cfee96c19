"""A command at a terminal, as a person has it."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.fork_server import FORK_SERVER, ForkedProcess

COLUMNS = 140
_END_S = 30.0


def at_terminal(data_dir: Path, *words: str, typed: str = "") -> tuple[str, int]:
    """All that a terminal was sent, and the exit code. What is `typed` is there before it is asked for."""
    with _started(data_dir, words, {}) as (process, terminal):
        os.write(terminal, typed.encode())
        sent = b"".join(_read(terminal))
    assert process.returncode is not None
    return sent.decode(), process.returncode


def until(data_dir: Path, words: Sequence[str], text: str, **environ: str) -> str:
    """All that a terminal was sent by a command that was stopped with Ctrl-C once it had written `text`."""
    sent = b""
    with _started(data_dir, words, environ) as (process, terminal):
        for chunk in _read(terminal):
            waited_for = text.encode() not in sent
            sent += chunk
            if waited_for and text.encode() in sent:
                process.send_signal(signal.SIGINT)
    return sent.decode()


@contextmanager
def _started(
    data_dir: Path, words: Sequence[str], extra: Mapping[str, str]
) -> Iterator[tuple["ForkedProcess | subprocess.Popen[bytes]", int]]:
    FORK_SERVER.prepare()
    environ = {
        **os.environ,
        "REMUDA_DATA_DIR": str(data_dir),
        "REMUDA_STARTER": "0",
        "TERM": "xterm",
        **extra,
    }
    terminal, screen = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with open(screen, "r+b", buffering=0) as file:
        process = FORK_SERVER.start(["remuda", *words], environ, stdin=file, stdout=file, stderr=file)
        command = [sys.executable, "-m", "remuda", *words]
        started = process or subprocess.Popen(command, env=environ, stdin=file, stdout=file, stderr=file)
    try:
        yield started, terminal
    finally:
        os.close(terminal)
        started.wait(_END_S)


def _read(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # How a terminal says that nobody is left.
            return
        yield chunk
