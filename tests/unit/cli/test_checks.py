"""Doctor's checks stand alone, are bounded in time, and look at the real machine."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from remuda.cli import checks
from remuda.cli.checks import Patient, examine
from remuda.cli.exits import Exit
from remuda.cli.findings import Finding, Level, ok
from remuda.cli.invocation import ClientOptions
from remuda.cli.verbs import root
from remuda.core.clock import SystemClock
from remuda.core.errors import Unavailable
from remuda.host.folder import DataFolder, write_json
from remuda.host.ports import free_port
from remuda.wire.process_keys import ROLE_HEADER, WORKER_ROLE


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return {"REMUDA_DATA_DIR": str(tmp_path / "data"), "REMUDA_PORT": str(free_port("127.0.0.1"))}


def patient(environ: dict[str, str], asked: ClientOptions | None = None) -> Patient:
    return Patient(asked or ClientOptions(), None, environ, SystemClock())


def test_a_check_that_the_frontend_refuses_is_no_mistake_of_ours(environ: dict[str, str]) -> None:
    def refused(_: Patient) -> list[Finding]:
        raise Unavailable("the database does not answer", hint="look at PostgreSQL")

    [found] = examine(patient(environ), {"nodes": refused})
    assert (found.message, found.remedy) == (
        "could not be checked: the database does not answer",
        "look at PostgreSQL",
    )


def test_a_check_that_fails_or_hangs_does_not_touch_the_others(environ: dict[str, str]) -> None:
    release = threading.Event()

    def hangs(_: Patient) -> list[Finding]:
        release.wait(30)
        return []

    def fails(_: Patient) -> list[Finding]:
        raise ZeroDivisionError("a bug")

    found = examine(
        patient(environ),
        {"hangs": hangs, "fails": fails, "works": lambda _: [ok("works", "well")]},
        limit_s=0.2,
    )
    release.set()

    assert [(finding.check, finding.level) for finding in found] == [
        ("hangs", Level.PROBLEM),
        ("fails", Level.PROBLEM),
        ("works", Level.OK),
    ]
    assert "a bug" in found[1].message


def test_a_setting_that_cannot_be_used_is_told_once(environ: dict[str, str]) -> None:
    environ["REMUDA_PORT"] = "none"
    found = examine(patient(environ), {"settings": checks.check_settings, "ports": checks.check_ports})

    assert [(finding.check, finding.level) for finding in found] == [("settings", Level.PROBLEM)]
    assert "REMUDA_PORT='none'" in found[0].message


def test_variables_that_nothing_reads_are_told_with_the_nearest(environ: dict[str, str]) -> None:
    found = checks.check_settings(patient({**environ, "REMUDA_PROT": "1"}))

    assert (found[0].level, found[0].remedy) == (Level.WARNING, "did you mean 'REMUDA_PORT'?")


def test_a_folder_that_does_not_exist_yet_is_well(environ: dict[str, str]) -> None:
    found = checks.check_folder(patient(environ))

    assert [finding.check for finding in found] == ["data folder", "disk"]
    assert found[0].level is Level.OK
    assert not Path(environ["REMUDA_DATA_DIR"]).exists()


def test_what_was_downloaded_for_models_that_are_not_installed_is_counted(environ: dict[str, str]) -> None:
    begun = Path(environ["REMUDA_DATA_DIR"]) / "model-store/partial/begun"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"-" * (3 << 20))
    found = {finding.check: finding for finding in checks.check_folder(patient(environ))}

    assert found["downloads"].level is Level.OK
    assert found["downloads"].message == (
        "3.0 MiB were downloaded for models that are not installed; without another try they are removed "
        "after 3 days"
    )


def test_a_file_in_the_place_of_the_folder_is_a_problem(environ: dict[str, str]) -> None:
    Path(environ["REMUDA_DATA_DIR"]).write_text("")

    assert checks.check_folder(patient(environ))[0].level is Level.PROBLEM


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_free_port_is_well(environ: dict[str, str]) -> None:
    assert [finding.level for finding in checks.check_ports(patient(environ))] == [Level.OK]


def test_a_port_held_by_another_program_is_a_problem_that_names_it(
    environ: dict[str, str], listener: socket.socket
) -> None:
    environ["REMUDA_PORT"] = str(listener.getsockname()[1])

    found = checks.check_ports(patient(environ))[0]

    assert found.level is Level.PROBLEM
    assert f"process {os.getpid()}" in found.message


def test_a_port_held_by_our_own_process_is_well(environ: dict[str, str], listener: socket.socket) -> None:
    environ["REMUDA_PORT"] = str(listener.getsockname()[1])
    endpoint = {"url": "http://127.0.0.1:1", "api_key": "k", "pid": os.getpid()}
    write_json(DataFolder(Path(environ["REMUDA_DATA_DIR"])).endpoint, endpoint)

    assert checks.check_ports(patient(environ))[0].level is Level.OK


def test_a_running_frontend_is_looked_for_at_the_port_that_it_has(
    environ: dict[str, str], listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    endpoint = {"url": f"http://127.0.0.1:{port}", "api_key": "k", "pid": os.getpid(), "port": port}
    write_json(DataFolder(Path(environ["REMUDA_DATA_DIR"])).endpoint, endpoint)

    assert [finding.message for finding in checks.check_ports(patient(environ))] == [
        f"port {port} (API) is held by Remuda itself (process {os.getpid()})"
    ]


def test_a_machine_that_joined_and_runs_no_worker_has_a_problem(environ: dict[str, str]) -> None:
    folder = DataFolder(Path(environ["REMUDA_DATA_DIR"]))
    assert checks.check_worker(patient(environ)) == []
    write_json(folder.joined, {"register_to": "http://127.0.0.1:1"})

    found = checks.check_worker(patient(environ))

    assert [(finding.level, finding.remedy) for finding in found] == [(Level.PROBLEM, "remuda worker")]
    assert "its worker is not running" in found[0].message


@pytest.mark.parametrize(
    ("status", "body", "level", "said"),
    [
        (200, b"ok", Level.OK, "receives commands"),
        (
            503,
            b"not ready: down (no answer from nats://h:4222)",
            Level.PROBLEM,
            "no answer from nats://h:4222",
        ),
    ],
)
def test_a_running_worker_is_asked_whether_it_can_be_commanded(
    environ: dict[str, str], status: int, body: bytes, level: Level, said: str
) -> None:
    class Worker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Worker) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        where = {"pid": os.getpid(), "url": f"http://127.0.0.1:{server.server_port}"}
        write_json(DataFolder(Path(environ["REMUDA_DATA_DIR"])).worker_endpoint, where)
        [found] = checks.check_worker(patient(environ))
        answering.join()

    assert found.level is level
    assert said in found.message


def test_no_frontend_on_a_machine_that_runs_none_is_a_warning(environ: dict[str, str]) -> None:
    found = checks.check_frontend(patient(environ))

    assert [(finding.check, finding.level) for finding in found] == [
        ("versions", Level.OK),
        ("frontend", Level.WARNING),
    ]


def test_a_stopped_frontend_is_a_problem_of_the_folder_it_used(environ: dict[str, str]) -> None:
    folder = DataFolder(Path(environ["REMUDA_DATA_DIR"]))
    folder.prepare()
    with folder.held_by("frontend"):
        pass

    found = checks.check_frontend(patient(environ))

    assert (found[1].check, found[1].level) == ("frontend", Level.PROBLEM)
    assert "remuda up is not running here" in found[1].message


@pytest.mark.parametrize("running", [False, True])
def test_a_models_folder_that_does_not_exist_is_a_problem(
    environ: dict[str, str], tmp_path: Path, running: bool
) -> None:
    missing = str(tmp_path / "modles")
    if running:
        write_json(DataFolder(Path(environ["REMUDA_DATA_DIR"])).endpoint, {"models": missing})
    else:
        environ["REMUDA_MODELS_PATH"] = missing

    found = checks.check_folder(patient(environ))

    assert found[-1].level is Level.PROBLEM
    assert f"{missing} does not exist" in found[-1].message


def test_a_frontend_that_was_killed_is_a_problem(environ: dict[str, str]) -> None:
    with subprocess.Popen(["true"]) as killed:
        killed.wait()
    endpoint = {"url": "http://127.0.0.1:1", "api_key": "k", "pid": killed.pid}
    write_json(DataFolder(Path(environ["REMUDA_DATA_DIR"])).endpoint, endpoint)

    found = checks.check_frontend(patient(environ))

    assert (found[1].check, found[1].level) == ("frontend", Level.PROBLEM)
    assert f"its process {killed.pid} has ended" in found[1].message
    assert "`remuda up` or `remuda frontend`" in found[1].remedy


def test_a_frontend_that_is_still_starting_is_said_to_be(environ: dict[str, str]) -> None:
    folder = DataFolder(Path(environ["REMUDA_DATA_DIR"]))
    folder.prepare()
    with folder.held_by("frontend"):
        found = checks.check_frontend(patient(environ))

    assert (found[1].check, found[1].level) == ("frontend", Level.WARNING)
    assert found[1].message == f"one is starting here (process {os.getpid()}) but does not answer yet"


def test_a_frontend_that_was_named_and_does_not_answer_is_a_problem(environ: dict[str, str]) -> None:
    asked = ClientOptions(url=f"http://127.0.0.1:{free_port('127.0.0.1')}")

    found = checks.check_frontend(patient(environ, asked))

    assert (found[1].check, found[1].level) == ("frontend", Level.PROBLEM)
    assert "nothing listens there" in found[1].message
    assert checks.check_nodes(patient(environ, asked)) == []


def test_a_machine_that_joined_asks_the_frontend_it_joined(environ: dict[str, str]) -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    write_json(DataFolder(Path(environ["REMUDA_DATA_DIR"])).joined, {"register_to": url})

    found = checks.check_frontend(patient(environ))

    assert url in found[1].message


class _AsksForKey(BaseHTTPRequestHandler):
    role = ""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 401)
        self.send_header("Content-Length", "0")
        self.send_header(ROLE_HEADER, self.role)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Worker(_AsksForKey):
    role = WORKER_ROLE


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_workers_port_in_the_environment_is_a_problem_of_that_variable(environ: dict[str, str]) -> None:
    with serving(_Worker) as url:
        found = checks.check_frontend(patient({**environ, "REMUDA_URL": url}))
    assert (found[1].check, found[1].level) == ("frontend", Level.PROBLEM)
    assert found[1].message == f"{url} (from REMUDA_URL) is a worker's port, not a frontend's"


def test_a_worker_without_an_api_key_is_nothing_to_warn_about(environ: dict[str, str]) -> None:
    with serving(_AsksForKey) as url:
        asked = checks.check_nodes(patient(environ, ClientOptions(url=url)))
        write_json(DataFolder(Path(environ["REMUDA_DATA_DIR"])).joined, {"register_to": url})
        joined = checks.check_nodes(patient(environ))
        refused = checks.check_nodes(patient({**environ, "REMUDA_API_KEY": "k3y"}, ClientOptions(url=url)))

    assert [one.level for one in (*asked, *joined, *refused)] == [Level.WARNING, Level.OK, Level.WARNING]
    assert joined[0].message.startswith("not looked at: listing them needs an API key")


def test_an_external_bus_is_tried_without_showing_its_password(
    environ: dict[str, str], listener: socket.socket
) -> None:
    up, down = listener.getsockname()[1], free_port("127.0.0.1")
    environ["REMUDA_NATS_URL"] = f"nats://u:s3cret@127.0.0.1:{up},nats://u:s3cret@127.0.0.1:{down}"

    found = checks.check_bus(patient(environ))

    assert [finding.level for finding in found] == [Level.OK, Level.PROBLEM]
    assert "s3cret" not in repr(found)


def test_doctor_answers_as_one_json_document(environ: dict[str, str]) -> None:
    result = CliRunner().invoke(root, ["doctor", "--json"], env=environ)

    document = json.loads(result.stdout)
    assert result.exit_code == Exit.DONE, result.stdout
    assert document["healthy"] is True
    assert {"check", "level", "message", "remedy"} == document["findings"][0].keys()


def test_doctor_exits_with_its_own_code_when_it_found_a_problem(environ: dict[str, str]) -> None:
    result = CliRunner().invoke(root, ["doctor"], env={**environ, "REMUDA_PORT": "none"})

    assert result.exit_code == Exit.UNHEALTHY
    assert "problem  settings" in result.stdout
