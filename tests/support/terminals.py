"""A command at a terminal, as a person has it."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

COLUMNS = 140


def at_terminal(data_dir: Path, *words: str, typed: str = "") -> tuple[str, int]:
    """All that a terminal was sent, and the exit code. What is `typed` is there before it is asked for."""
    environ = {**os.environ, "REMUDA_DATA_DIR": str(data_dir), "TERM": "xterm"}
    terminal, screen = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    os.write(terminal, typed.encode())
    command = [sys.executable, "-m", "remuda", *words]
    with subprocess.Popen(command, env=environ, stdin=screen, stdout=screen, stderr=screen) as process:
        os.close(screen)
        sent = b"".join(_read(terminal))
        os.close(terminal)
    return sent.decode(), process.returncode


def _read(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # How a terminal says that nobody is left.
            return
        yield chunk
