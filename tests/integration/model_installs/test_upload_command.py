"""`remuda models add FILE` to a frontend elsewhere, over a link that breaks, while the frontend is killed."""

import math
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.integration.model_installs.test_installing import TINY, padded
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.processes import Frontend, Ranch, ranch
from tests.support.waiting import wait_until_blocking

MB = 1_000_000
SLOW = 2 * MB


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Ranch]:
    with ranch(tmp_path) as place:
        yield place


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Link:
    """In a thread of its own, for the frontends are processes, and tests wait for them."""

    proxy: FaultProxy
    portal: BlockingPortal

    def limit(self, bytes_per_s: float) -> None:
        self.portal.call(self.proxy.slow, 0.0, bytes_per_s)

    def cut(self) -> None:
        self.portal.call(self.proxy.reset)


@pytest.fixture
def link(port: int) -> Iterator[Link]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fault_proxy(port)) as proxy:
        yield Link(proxy, portal)


def arrived(frontend: Frontend) -> int:
    uploads = frontend.get("/api/model-uploads")["uploads"]
    return sum(int(file["offset"]) for one in uploads for file in one["files"])


def wait_for_bytes(frontend: Frontend, least: int) -> None:
    wait_until_blocking(lambda: arrived(frontend) >= least, within=60, what=f"{least} bytes to arrive")


def visible(frontend: Frontend) -> list[str]:
    models = frontend.data_dir / "models"
    return sorted(str(one.relative_to(models)) for one in models.rglob("*") if one.is_file())


def test_an_upload_outlives_cut_connections_and_a_killed_frontend(
    place: Ranch, port: int, link: Link, tmp_path: Path
) -> None:
    file, size = tmp_path / "tiny.gguf", 6 * MB
    file.write_bytes(padded(size - len(TINY)))
    link.limit(SLOW)
    frontend = place.frontend("attic", "--port", str(port))
    url = f"http://127.0.0.1:{link.proxy.port}"
    command = place.program("remuda", "models", "add", str(file), "--upload", "--url", url)

    wait_for_bytes(frontend, MB)
    link.cut()
    wait_for_bytes(frontend, 2 * MB)
    assert visible(frontend) == []
    before = arrived(frontend)
    frontend.kill()
    frontend = place.frontend("attic", "--port", str(port))
    assert arrived(frontend) >= before, "what was on the disk is still there"
    assert command.wait(within=120) == 0, command.log
    assert visible(frontend) == ["tiny/tiny.gguf"]
    assert (frontend.data_dir / "models/tiny/tiny.gguf").read_bytes() == file.read_bytes()
    assert "trying again" in command.log


def test_an_upload_that_is_interrupted_goes_on_when_the_command_is_repeated(
    place: Ranch, port: int, link: Link, tmp_path: Path
) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(padded(4 * MB))
    link.limit(SLOW)
    frontend = place.frontend("attic", "--port", str(port))
    words = ("models", "add", str(file), "--upload", "--url", f"http://127.0.0.1:{link.proxy.port}")
    command = place.program("remuda", *words)
    wait_for_bytes(frontend, MB)
    os.kill(command.pid, signal.SIGINT)
    assert command.wait(within=60) == 130
    assert "the same command goes on from there" in command.log

    link.limit(math.inf)
    again = place.remuda(*words, "--name", "mine")
    assert again.returncode == 0, again.stderr
    assert "are there already" in again.stderr
    assert visible(frontend) == ["mine/tiny.gguf"]
