"""Each misbehaving backend does what its name says, before others rely on it."""

import errno
import os
import signal
import socket
from pathlib import Path

import anyio
import psutil
import pytest

from tests.integration.peers.conftest import HOST, Running, Start
from tests.peers.backend_client import BackendClient, CallFailed
from tests.support.bad_backends import (
    DONE,
    EXIT_CODE,
    GO,
    PORT,
    STDERR_LINES,
    Bad,
    grandchildren,
    tell,
    write_bad_backend,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

FLOODED_BYTES = 5_000_000


async def ready(start: Start, folder: Path, kind: Bad) -> Running:
    running = start(write_bad_backend(folder, kind))
    await running.wait_until_it_answers()
    assert await running.health() == "OK"
    return running


def accepts(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((HOST, port)) == 0


@pytest.mark.parametrize(
    ("kind", "code", "complaint"),
    [
        (Bad.EXITS, EXIT_CODE, f"line {STDERR_LINES}\n"),
        (Bad.LACKS_LIBRARY, 127, "error while loading shared libraries: libfoo.so.1: cannot open shared"),
        (Bad.KILLED, -signal.SIGKILL, ""),
        (Bad.ILLEGAL_INSTRUCTION, -signal.SIGILL, ""),
        (Bad.WRONG_ARCHITECTURE, 126, "Exec format error"),
    ],
)
def test_it_ends_at_once(start: Start, tmp_path: Path, kind: Bad, code: int, complaint: str) -> None:
    running = start(write_bad_backend(tmp_path, kind))
    assert running.ended() == code
    assert complaint in running.errors


def test_a_run_file_of_another_machine_cannot_be_started(start: Start, tmp_path: Path) -> None:
    run_file = write_bad_backend(tmp_path, Bad.WRONG_RUN_FILE)
    with pytest.raises(OSError, match="Exec format error") as refused:
        start(run_file)
    assert refused.value.errno == errno.ENOEXEC


async def test_another_port_than_it_was_told_answers(start: Start, tmp_path: Path) -> None:
    running = start(write_bad_backend(tmp_path, Bad.WRONG_PORT))
    written = anyio.Path(tmp_path / PORT)
    await wait_until(written.exists)
    async with BackendClient(f"{HOST}:{await written.read_text()}") as client:
        assert await client.health() == "OK"
    assert not accepts(running.port)


async def test_a_silent_one_takes_connections_and_answers_no_call(start: Start, tmp_path: Path) -> None:
    running = start(write_bad_backend(tmp_path, Bad.SILENT))
    await wait_until(lambda: accepts(running.port))
    async with BackendClient(running.address, call_s=0.3) as client:
        with pytest.raises(CallFailed) as failed:
            await client.health()
    assert failed.value.code in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
    assert running.process.poll() is None


async def test_health_may_be_another_word_than_ok(start: Start, tmp_path: Path) -> None:
    running = start(write_bad_backend(tmp_path, Bad.NOT_OK))
    await running.wait_until_it_answers()
    assert await running.health() == "LOADING"


async def test_a_slow_one_opens_its_port_when_told(start: Start, tmp_path: Path) -> None:
    running = start(write_bad_backend(tmp_path, Bad.STARTS_SLOWLY))
    before = accepts(running.port)
    tell(tmp_path)
    await running.wait_until_it_answers()
    assert (before, (tmp_path / GO).exists()) == (False, False)


async def test_sigterm_does_not_end_a_deaf_one(start: Start, tmp_path: Path) -> None:
    running = await ready(start, tmp_path, Bad.IGNORES_SIGTERM)
    running.process.terminate()
    assert await running.health() == "OK"
    running.process.kill()
    assert running.ended() == -signal.SIGKILL


async def test_free_may_never_be_answered(start: Start, tmp_path: Path) -> None:
    running = await ready(start, tmp_path, Bad.HANGS_IN_FREE)
    async with BackendClient(running.address, call_s=0.3) as client:
        with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
            await client.free()
    assert await running.health() == "OK"


async def test_of_two_grandchildren_one_leaves_the_group(start: Start, tmp_path: Path) -> None:
    running = await ready(start, tmp_path, Bad.FORKS)
    obedient, runaway = grandchildren(tmp_path)
    try:
        groups = [os.getpgid(pid) for pid in (obedient, runaway)]
        parents = [psutil.Process(pid).ppid() for pid in (obedient, runaway)]
    finally:
        os.kill(runaway, signal.SIGKILL)
    assert groups == [running.process.pid, runaway]
    assert parents == [running.process.pid] * 2


async def test_a_closed_port_is_no_death(start: Start, tmp_path: Path) -> None:
    running = await ready(start, tmp_path, Bad.CLOSES_PORT)
    tell(tmp_path)
    await wait_until(lambda: not accepts(running.port))
    assert running.process.poll() is None


async def test_a_flood_on_stderr_does_not_silence_health(start: Start, tmp_path: Path) -> None:
    running = await ready(start, tmp_path, Bad.FLOODS_STDERR)
    tell(tmp_path, str(FLOODED_BYTES))
    await wait_until((tmp_path / DONE).exists)
    assert len(running.errors) == FLOODED_BYTES
    assert await running.health() == "OK"


async def test_it_dies_when_told_and_only_once(start: Start, tmp_path: Path) -> None:
    running = await ready(start, tmp_path, Bad.DIES)
    tell(tmp_path)
    assert running.ended() == EXIT_CODE
    assert "told to die" in running.errors
    again = start(tmp_path / "run.sh")
    await again.wait_until_it_answers()
    assert await again.health() == "OK"
