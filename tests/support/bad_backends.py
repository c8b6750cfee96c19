"""Backends that misbehave, one way each, for whoever has to supervise them.

They are steered through files in their working folder: a test writes `GO` by `tell`, and a backend that
acts on it takes it away. None asks for a token, and none outlives `LIFETIME_S`, whoever forgets it.
"""

import argparse
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any

import grpc

from tests.peers.backend_proto import TRANSPORT, build, service

GO = "go"
DONE = "done"
PORT = "port"
GRANDCHILDREN = "grandchildren"
EXIT_CODE = 3
STDERR_LINES = 25
FLOOD_BYTES = 1 << 30
LIFETIME_S = 600
_POLL_S = 0.02
_ROOT = Path(__file__).parents[2]
_CHUNK = (b"e" * 127 + b"\n") * 8192


class Bad(StrEnum):
    """What is wrong with it. Those in the second half are ready first: they answer `Health`."""

    EXITS = "exits"  # At once, with EXIT_CODE, after STDERR_LINES lines `line 1`, `line 2`...
    LACKS_LIBRARY = "lacks-library"  # Speaks as the dynamic loader does, and exits with its code, 127.
    KILLED = "killed"  # By SIGKILL, as the kernel does when memory runs out.
    ILLEGAL_INSTRUCTION = "illegal-instruction"  # Ended by SIGILL.
    WRONG_ARCHITECTURE = "wrong-architecture"  # Its run file starts a program of another machine: code 126.
    WRONG_RUN_FILE = "wrong-run-file"  # The run file itself is such a program: it cannot be started.
    WRONG_PORT = "wrong-port"  # Listens on another one, which it writes to PORT.
    SILENT = "silent"  # Takes connections, and says nothing.
    NOT_OK = "not-ok"  # Answers `Health` with another word than OK.
    STARTS_SLOWLY = "starts-slowly"  # Opens its port on GO.

    IGNORES_SIGTERM = "ignores-sigterm"  # From its first moment.
    HANGS_IN_FREE = "hangs-in-free"  # Never answers that call.
    FORKS = "forks"  # Two processes, written to GRANDCHILDREN: in its group, and in a session of its own.
    CLOSES_PORT = "closes-port"  # On GO, and lives on.
    FLOODS_STDERR = "floods-stderr"  # On GO: so many bytes as GO says, else FLOOD_BYTES; then writes DONE.
    DIES = "dies"  # On GO, with EXIT_CODE.


def write_bad_backend(folder: Path, kind: Bad) -> Path:
    """Make that folder a backend of this kind, and return its run file."""
    folder.mkdir(parents=True, exist_ok=True)
    run_file = folder / "run.sh"
    if kind is Bad.WRONG_RUN_FILE:
        run_file.write_bytes(_program_of_another_machine())
    else:
        run_file.write_text(_SCRIPTS.get(kind) or _script_of_program(kind))
    if kind is Bad.WRONG_ARCHITECTURE:
        engine = folder / "engine"
        engine.write_bytes(_program_of_another_machine())
        engine.chmod(0o755)
    run_file.chmod(0o755)
    return run_file


def tell(folder: Path, said: str = "") -> None:
    """Give the backend that runs in that folder its GO."""
    _write(folder / GO, said)


def grandchildren(folder: Path) -> tuple[int, int]:
    """What FORKS started: the pid in its own group, and the one that left it."""
    obedient, runaway = (folder / GRANDCHILDREN).read_text().split()
    return int(obedient), int(runaway)


def _write(place: Path, text: str) -> None:
    """Whole or not at all, for somebody waits for it."""
    draft = place.with_suffix(".part")
    draft.write_text(text)
    draft.rename(place)


_SCRIPTS = {
    Bad.EXITS: f"""#!/bin/sh
count=0
while [ $((count += 1)) -le {STDERR_LINES} ]; do echo "line $count" >&2; done
exit {EXIT_CODE}
""",
    Bad.LACKS_LIBRARY: """#!/bin/sh
echo "./engine: error while loading shared libraries: libfoo.so.1:" \\
    "cannot open shared object file: No such file or directory" >&2
exit 127
""",
    Bad.KILLED: "#!/bin/sh\nkill -KILL $$\n",
    Bad.ILLEGAL_INSTRUCTION: "#!/bin/sh\nulimit -c 0\nkill -ILL $$\n",
    # Other shells would read the program as a script.
    Bad.WRONG_ARCHITECTURE: '#!/usr/bin/env bash\nexec ./engine "$@"\n',
}


def _script_of_program(kind: Bad) -> str:
    deaf = "trap '' TERM" if kind is Bad.IGNORES_SIGTERM else ""
    python, root = shlex.quote(sys.executable), shlex.quote(str(_ROOT))
    return f"""#!/bin/sh
{deaf}
PYTHONPATH={root} exec {python} -m {__name__} {kind} "$@"
"""


def _program_of_another_machine() -> bytes:
    """The head of a program for the VAX, which no emulator that a kernel might call for help knows."""
    executable, vax, version, head_bytes = 2, 75, 1, 52
    ident = b"\x7fELF\x01\x01\x01".ljust(16, b"\0")
    return ident + struct.pack("<HHIIIIIHHHHHH", executable, vax, version, *[0] * 4, head_bytes, *[0] * 5)


# From here on: the program that the other scripts start.

_SERVING: list[Any] = []  # A server that nobody holds stops.


def _serve(address: str, health: bytes = b"OK", **others: Callable[..., object]) -> Any:
    server = grpc.server(ThreadPoolExecutor(4), options=TRANSPORT)
    calls = {"Health": lambda request, context: build("Reply", message=health), **others}
    server.add_generic_rpc_handlers((service(calls),))
    server.add_insecure_port(address)
    server.start()
    _SERVING.append(server)
    return server


def _on_go() -> str:
    """Wait for GO, take it away, and return what it says."""
    pause = threading.Event()
    while not Path(GO).exists():
        pause.wait(_POLL_S)
    said = Path(GO).read_text()
    Path(GO).unlink()
    return said


def _wrong_port(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = _serve(f"127.0.0.1:{port}")
    _write(Path(PORT), str(port))
    server.wait_for_termination()


def _silent(address: str) -> None:
    host, _, port = address.rpartition(":")
    held = []
    with socket.create_server((host, int(port))) as listener:
        while True:
            held.append(listener.accept())


def _starts_slowly(address: str) -> None:
    _on_go()
    _serve(address).wait_for_termination()


def _hangs_in_free(address: str) -> None:
    forever = threading.Event()
    _serve(address, Free=lambda request, context: forever.wait()).wait_for_termination()


def _forks(address: str) -> None:
    sleep = ["sleep", str(LIFETIME_S)]
    children = [subprocess.Popen(sleep, start_new_session=away) for away in (False, True)]
    _write(Path(GRANDCHILDREN), " ".join(str(child.pid) for child in children))
    _serve(address).wait_for_termination()


def _closes_port(address: str) -> None:
    server = _serve(address)
    _on_go()
    server.stop(None).wait()
    threading.Event().wait()


def _floods_stderr(address: str) -> None:
    server = _serve(address)
    left = int(_on_go() or FLOOD_BYTES)
    while left > 0:
        left -= os.write(sys.stderr.fileno(), _CHUNK[:left])
    _write(Path(DONE), "")
    server.wait_for_termination()


def _dies(address: str) -> None:
    _serve(address)
    _on_go()
    print("it was told to die", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)


_PROGRAMS: dict[Bad, Callable[[str], None]] = {
    Bad.WRONG_PORT: _wrong_port,
    Bad.SILENT: _silent,
    Bad.NOT_OK: lambda address: _serve(address, b"LOADING").wait_for_termination(),
    Bad.STARTS_SLOWLY: _starts_slowly,
    Bad.IGNORES_SIGTERM: lambda address: _serve(address).wait_for_termination(),
    Bad.HANGS_IN_FREE: _hangs_in_free,
    Bad.FORKS: _forks,
    Bad.CLOSES_PORT: _closes_port,
    Bad.FLOODS_STDERR: _floods_stderr,
    Bad.DIES: _dies,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", type=Bad)
    parser.add_argument("--addr", required=True)
    given = parser.parse_args()
    signal.alarm(LIFETIME_S)
    _PROGRAMS[given.kind](given.addr)


if __name__ == "__main__":
    main()
