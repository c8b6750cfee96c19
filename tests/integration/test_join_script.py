"""The line a person types on another machine, run for real against a small server on loopback."""

import hashlib
import importlib.util
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

import remuda
from remuda.host.joining import bare_machine_line, own_wheel, pack, script
from remuda.host.ports import free_port
from tests.support.bare_machine import bare_machine
from tests.support.waiting import wait_until_blocking

needs_ensurepip = pytest.mark.skipif(
    not importlib.util.find_spec("ensurepip"), reason="this Python cannot make environments"
)

PONY = b"""
import os, sys
def main():
    print(sys.argv[1:], os.environ.get("REMUDA_REGISTRATION_TOKEN"))
"""
PONY_METADATA = {
    "METADATA": b"Metadata-Version: 2.1\nName: pony\nVersion: 1\n",
    "entry_points.txt": b"[console_scripts]\npony = pony:main\n",
}
NEEDY = b"Metadata-Version: 2.1\nName: pony\nVersion: 1\nRequires-Dist: saddle\n"
AS_REMUDA = b"[console_scripts]\nremuda = pony:main\n"


class Ranch(ThreadingHTTPServer):
    """Serves a join script and its wheel; `gate` holds the wheel back while it is not set."""

    def __init__(
        self, wheel: tuple[str, bytes], *, tls: ssl.SSLContext | None = None, sha256: str = ""
    ) -> None:
        super().__init__(("127.0.0.1", 0), RanchHandler)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_port}"
        name, content = wheel
        digest = sha256 or hashlib.sha256(content).hexdigest()
        join_script = script(f"{self.url}/join/{name}", digest).encode()
        self.pages: Mapping[str, bytes] = {"/join.py": join_script, f"/join/{name}": content}
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()


class RanchHandler(BaseHTTPRequestHandler):
    server: Ranch

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path.endswith(".whl"):
            self.server.gate.wait(timeout=60)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.pages[self.path])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(ranch: Ranch) -> Iterator[Ranch]:
    thread = threading.Thread(target=ranch.serve_forever)
    thread.start()
    try:
        yield ranch
    finally:
        ranch.gate.set()
        ranch.shutdown()
        thread.join()
        ranch.server_close()


def pony_wheel() -> tuple[str, bytes]:
    return pack("pony", "1", {"pony.py": PONY}, PONY_METADATA)


def type_line(line: str, machine: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line], env=machine, capture_output=True, text=True, timeout=100, check=False
    )


def test_this_remuda_arrives_on_a_bare_machine(tmp_path: Path) -> None:
    machine = bare_machine(tmp_path, uv=True)
    show = "import remuda, fastapi; print(remuda.__version__, remuda.__file__)"
    with serving(Ranch(own_wheel())) as ranch:
        done = type_line(bare_machine_line(ranch.url, "python", "-c", show), machine)
    assert done.returncode == 0, done.stderr
    version, place = done.stdout.split()
    assert version == remuda.__version__
    assert Path(place).is_relative_to(Path(machine["HOME"]) / ".local/share/remuda/runtime")


@needs_ensurepip
def test_machine_without_uv_uses_pip_and_prepares_once(tmp_path: Path) -> None:
    machine = bare_machine(tmp_path)
    with serving(Ranch(pony_wheel())) as ranch:
        line = bare_machine_line(ranch.url, "pony", "join", "--token", "s3cret", "--name", "dun")
        first, second = type_line(line, machine), type_line(line, machine)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout == "['join', '--name', 'dun'] s3cret\n"
    assert second.stderr == ""
    assert len([path for path in ranch.asked if path.endswith(".whl")]) == 1


@pytest.mark.long
@needs_ensurepip
def test_machine_without_ensurepip_uses_the_systems_pip(tmp_path: Path) -> None:
    machine = bare_machine(tmp_path)
    subprocess.run(["python3", "-m", "venv", tmp_path / "with_pip"], env=machine, check=True, timeout=60)
    # As Debian has it: venv and pip are there, ensurepip is not.
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text("import sys; sys.modules['ensurepip'] = None\n")
    python = Path(machine["PATH"]) / "python3"
    python.write_text(f'#!/bin/sh\nexec "{tmp_path}/with_pip/bin/python" "$@"\n')
    with serving(Ranch(pony_wheel())) as ranch:
        line = bare_machine_line(ranch.url, "pony")
        done = type_line(line, machine | {"PYTHONPATH": str(tmp_path / "hidden")})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] None\n"


def test_token_leaves_the_process_list(tmp_path: Path) -> None:
    machine = bare_machine(tmp_path, uv=True)
    ranch = Ranch(pony_wheel())
    ranch.gate.clear()
    with serving(ranch):
        line = bare_machine_line(ranch.url, "pony", "--token", "s3cret")
        with subprocess.Popen(
            ["sh", "-c", f"exec {line}"], env=machine, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            wait_until_blocking(lambda: any(path.endswith(".whl") for path in ranch.asked), within=30)
            arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            ranch.gate.set()
            output, _ = process.communicate(timeout=60)
    assert b"pony" in arguments
    assert b"s3cret" not in arguments
    assert output == b"[] s3cret\n"


def test_https_frontend_is_checked_with_the_given_certificate(tmp_path: Path) -> None:
    machine = bare_machine(tmp_path, uv=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    ca = str(tmp_path / "ca.pem")
    with serving(Ranch(pony_wheel(), tls=tls)) as ranch:
        done = type_line(bare_machine_line(ranch.url, "pony", "--ca", ca, ca=ca), machine)
    assert done.returncode == 0, done.stderr
    assert ca in done.stdout


def test_a_certificate_that_is_not_trusted_is_a_sentence(tmp_path: Path) -> None:
    machine = bare_machine(tmp_path, uv=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
    with serving(Ranch(pony_wheel(), tls=tls)) as ranch:
        done = type_line(bare_machine_line(ranch.url, "pony"), machine)
    assert done.returncode == 1
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr
    assert "its certificate trusted here?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_machine_without_a_package_index_is_told_what_to_set(tmp_path: Path) -> None:
    machine = bare_machine(tmp_path, uv=True) | {
        "UV_DEFAULT_INDEX": f"http://127.0.0.1:{free_port('127.0.0.1')}/simple",
        "UV_HTTP_RETRIES": "0",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    needy = pack("pony", "1", {"pony.py": PONY}, {**PONY_METADATA, "METADATA": NEEDY})
    with serving(Ranch(needy)) as ranch:
        done = type_line(bare_machine_line(ranch.url, "pony"), machine)
    assert done.returncode == 1
    assert "UV_DEFAULT_INDEX for uv" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_is_put_where_a_shell_finds_it(tmp_path: Path) -> None:
    machine = bare_machine(tmp_path, uv=True)
    launcher = Path(machine["HOME"]) / ".local/bin/remuda"
    wheel = pack("pony", "1", {"pony.py": PONY}, {**PONY_METADATA, "entry_points.txt": AS_REMUDA})
    with serving(Ranch(wheel)) as ranch:
        line = bare_machine_line(ranch.url, "remuda", "join")
        first, second = type_line(line, machine), type_line(line, machine)
        assert type_line(f"'{launcher}' worker", machine).stdout == "['worker'] None\n"
        launcher.write_text("somebody else's")
        third = type_line(line, machine)
    assert first.returncode == 0, first.stderr
    assert f"the command remuda is at {launcher}" in first.stderr
    assert f'export PATH="{launcher.parent}:$PATH"' in first.stderr
    assert second.stderr == ""
    assert launcher.read_text() == "somebody else's"
    assert f"{launcher} is not from a join line and stays as it is" in third.stderr


def test_wheel_of_another_frontend_is_refused(tmp_path: Path) -> None:
    machine = bare_machine(tmp_path, uv=True)
    with serving(Ranch(pony_wheel(), sha256="0" * 64)) as ranch:
        done = type_line(bare_machine_line(ranch.url, "pony"), machine)
    assert done.returncode == 1
    assert "is not what this script was made for" in done.stderr
    assert "Traceback" not in done.stderr
