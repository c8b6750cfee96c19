"""Secrets given as arguments are not in the process list of a real process, however it was started."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from remuda.host.folder import DataFolder
from tests.support.waiting import wait_until_blocking

SECRET = "s3cret-in-the-arguments"
SCRIPT = str(Path(sys.executable).with_name("remuda"))
STARTS = [
    (sys.executable, "-m", "remuda"),
    (sys.executable, SCRIPT),
    (sys.executable, "-X", "utf8", "-m", "remuda"),
]


@contextmanager
def started(*command: str, data_dir: Path) -> Iterator[psutil.Process]:
    environ = {**os.environ, "REMUDA_DATA_DIR": str(data_dir)}
    child = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(timeout=30)


@pytest.mark.parametrize("start", STARTS, ids=["module", "script", "interpreter-option"])
def test_an_api_key_is_used_but_not_shown(tmp_path: Path, start: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with started(*start, "nodes", "--url", url, f"--api-key={SECRET}", data_dir=tmp_path) as process:
            connection, _ = server.accept()  # The command waits for an answer that does not come.
            with connection:
                connection.settimeout(30)
                request = connection.recv(65536)
                shown = process.cmdline()

    assert f"Bearer {SECRET}".encode() in request
    assert SECRET not in " ".join(shown)
    assert shown[-3:] == ["nodes", "--url", url]


def test_a_registration_token_is_not_shown(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "remuda", "frontend", "--port", "0", "--token", SECRET)
    with started(*command, data_dir=tmp_path) as process:
        wait_until_blocking(DataFolder(tmp_path).endpoint.exists, within=30)
        shown = [process, *process.children(recursive=True)]
        arguments = " ".join(word for one in shown for word in one.cmdline())

    assert "frontend --port 0" in arguments
    assert SECRET not in arguments
