"""`remuda backends register` and `switch-back`: commands of this machine as backends."""

import json
from pathlib import Path

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.layout import DepotLayout
from tests.integration.depot.conftest import Remuda, backends_command

SERVER = 'protocol: http\ncommand: [my-server, --port, "{port}"]\n'


@pytest.fixture
def remuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remuda:
    """On a machine of its own."""
    monkeypatch.setenv("REMUDA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("REMUDA_CONFIG", "")
    monkeypatch.setenv("REMUDA_BACKENDS_SYSTEM_PATH", str(tmp_path / "system"))
    return backends_command


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return tmp_path / "data" / "worker" / "backends"


def written(folder: Path, content: str, name: str = "web.yaml") -> str:
    file = folder / name
    file.write_text(content)
    return str(file)


def test_a_registered_file_is_a_backend_until_it_is_removed(
    remuda: Remuda, tmp_path: Path, installed: Path
) -> None:
    file = written(tmp_path, SERVER)

    assert remuda("register", file).stdout == "web: registered\n"

    assert remuda("register", file).stdout == "web: registered already\n"
    assert (installed / "web" / "remuda.yaml").read_text() == SERVER
    [row] = json.loads(remuda("list", "--local", "--json").stdout)["backends"]
    assert row["name"] == "web"
    assert "uri" not in row
    assert remuda("remove", "--local", "web").stdout == "web: removed\n"
    assert "no backends are installed" in remuda("list", "--local").stdout


def test_it_can_have_another_name_and_answers_in_json(
    remuda: Remuda, tmp_path: Path, installed: Path
) -> None:
    file = written(tmp_path, SERVER, "remuda.yaml")

    assert "add --name" in remuda("register", file, code=6).stderr
    done = json.loads(remuda("register", file, "--name", "team/web", "--json").stdout)

    assert done == {"name": "team__web", "folder": str(installed / "team__web"), "changed": True}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "it must be a mapping"),
        ("protocol: [}", "line 1: not valid YAML"),
        (SERVER + "halth: /up\n", "halth is not known here"),
        ('protocol: http\ncommand: [server, "{prot}"]\n', "command[1]: there is no placeholder {prot}"),
        ("protocol: http\ncommand: [server]\n", "{port} must appear in command or env"),
        ("protocol: grpc\n", "protocol: grpc needs a folder with a run.sh"),
        (SERVER.replace("my-server", "./my-server"), "command: ./my-server is looked up"),
        (SERVER + "# " + "x" * (64 << 10), "it has more than 64 KiB"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_told_why(
    remuda: Remuda, tmp_path: Path, installed: Path, content: str, told: str
) -> None:
    file = written(tmp_path, content)

    assert f"{file}: {told}" in remuda("register", file, code=6).stderr

    assert not installed.exists()


def test_a_file_that_is_not_there_is_a_misuse(remuda: Remuda, tmp_path: Path) -> None:
    assert "does not exist" in remuda("register", str(tmp_path / "gone.yaml"), code=2).stderr


def test_it_does_not_take_the_name_of_another_kind_of_backend(
    remuda: Remuda, tmp_path: Path, installed: Path
) -> None:
    run_file = installed / "web" / "run.sh"
    run_file.parent.mkdir(parents=True)
    run_file.write_text("#!/bin/sh\n")

    refused = remuda("register", written(tmp_path, SERVER), code=6).stderr

    assert "web is already the name of an installed backend" in refused
    assert run_file.exists()


def test_a_change_can_be_taken_back_and_made_again(remuda: Remuda, tmp_path: Path, installed: Path) -> None:
    later = SERVER + "health: /up\n"
    for content in (SERVER, later):
        remuda("register", written(tmp_path, content))

    told = remuda("switch-back", "web")

    assert told.stdout == "web: switched back to the previous version\n"
    assert (installed / "web" / "remuda.yaml").read_text() == SERVER
    assert json.loads(remuda("switch-back", "web", "--json").stdout) == {"name": "web"}
    assert (installed / "web" / "remuda.yaml").read_text() == later


def test_without_a_version_before_nothing_is_switched(
    remuda: Remuda, tmp_path: Path, installed: Path
) -> None:
    later = SERVER + "health: /up\n"
    for content in (SERVER, later):
        remuda("register", written(tmp_path, content))
    places = DepotLayout(installed, tmp_path / "system", tmp_path / "depot")
    anyio.run(Depot(places, SystemClock()).mark_proven, "web")

    assert "no earlier version of web is kept" in remuda("switch-back", "web", code=5).stderr
    assert "other is not installed" in remuda("switch-back", "other", code=5).stderr

    assert (installed / "web" / "remuda.yaml").read_text() == later
