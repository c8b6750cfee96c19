"""The lightest gRPC backend there can be: it starts in a moment and says yes to every call.

A bare interpreter runs this very file, so it imports the standard library only. It knows little of HTTP/2.
"""

import os
import shlex
import signal
import socket
import sys
import threading
from pathlib import Path

_END_S = 0.05
_PREFACE_BYTES = 24
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_YES = b"\x0a\x02OK\x10\x01"  # A Reply that says OK, and a Result that is a success.
_MESSAGE = b"\0" + len(_YES).to_bytes(4, "big") + _YES
_HEAD = b"\x88\x00\x0ccontent-type\x10application/grpc"  # Status 200 and one header, not compressed.
_TRAILER = b"\x00\x0bgrpc-status\x010"


def write_light_backend(folder: Path) -> Path:
    """Make that folder such a backend."""
    folder.mkdir(parents=True)
    run_file = folder / "run.sh"
    python, program = shlex.quote(sys.executable), shlex.quote(__file__)
    run_file.write_text(f'#!/bin/sh\nexec {python} -I -S {program} "$2"\n')
    run_file.chmod(0o755)
    return folder


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    host, _, port = sys.argv[1].rpartition(":")
    with socket.create_server((host, int(port))) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_talk, args=(connection,), daemon=True).start()


def _end(number: int, frame: object) -> None:
    """Real ones take their time, too: whoever does not wait for the end is found out."""
    threading.Event().wait(_END_S)
    os._exit(0)


def _talk(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as incoming:
        incoming.read(_PREFACE_BYTES)
        connection.sendall(_frame(_SETTINGS, 0, 0))
        while head := incoming.read(9):
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            payload = incoming.read(int.from_bytes(head[:3], "big"))
            if kind == _SETTINGS and not flags & _ACK:
                connection.sendall(_frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags & _ACK:
                connection.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                connection.sendall(_answer(stream))


def _answer(stream: int) -> bytes:
    return (
        _frame(_HEADERS, _END_HEADERS, stream, _HEAD)
        + _frame(_DATA, 0, stream, _MESSAGE)
        + _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _TRAILER)
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


if __name__ == "__main__":
    main()
