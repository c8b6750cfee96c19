"""`remuda up --lan`: open to the network, and closed to whoever has no key."""

import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from remuda.host.ports import free_port
from tests.support.bare_machine import bare_machine
from tests.support.processes import Frontend, Ranch, ranch


@dataclass(frozen=True, slots=True)
class Lan:
    """Started twice, so that what is shown once can be told from what is shown each time."""

    place: Ranch
    first: Frontend  # Has ended.
    up: Frontend

    @property
    def join_line(self) -> str:
        return next(line.strip() for line in self.up.shown.splitlines() if "join.py" in line)

    @property
    def admin_key(self) -> str:
        return self.first.shown.partition("Admin key, shown this once")[2].split("\n")[1].strip()

    def secrets(self) -> set[str]:
        with closing(sqlite3.connect(self.up.data_dir / "remuda.db")) as database:
            kept = {value for (value,) in database.execute("SELECT value FROM secrets")}
        assert len(kept) >= 4, "a token and the seeds of the bus"
        return {*kept, self.admin_key, self.up.api_key}


@pytest.fixture(scope="module")
def lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    port = str(free_port("127.0.0.1"))
    options = ("--lan", "--port", port, "--public-url", f"http://127.0.0.1:{port}")
    with ranch(tmp_path_factory.mktemp("lan") / "ranch") as place:
        first = place.up("lan", *options, REMUDA_REGISTRATION_TOKEN="")
        assert first.stop() == 0
        yield Lan(place, first, place.up("lan", *options, REMUDA_REGISTRATION_TOKEN=""))


def test_admin_key_is_shown_once_and_works_from_then_on(lan: Lan) -> None:
    assert "Admin key" not in lan.up.shown
    assert lan.admin_key not in lan.up.shown
    assert lan.up.ask("GET", "/api/nodes", key=lan.admin_key).status_code == 200


@pytest.mark.parametrize("path", ["/api/nodes", "/metrics"])
def test_api_is_closed_without_a_key(lan: Lan, path: str) -> None:
    assert lan.up.ask("GET", path, key="").status_code == 401
    assert lan.up.ask("GET", path, key="rmd_guessed").status_code == 401


def test_commands_on_the_same_machine_need_no_key(lan: Lan) -> None:
    done = lan.place.invoke("nodes", data="lan")
    assert done.exit_code == 0, done.stderr
    assert "healthy" in done.stdout


def test_every_start_prints_the_line_by_which_machines_join(lan: Lan) -> None:
    assert lan.join_line in lan.first.shown
    assert re.search(rf"remuda join {re.escape(lan.up.url)} --token \S+$", lan.join_line)


def test_no_secret_is_in_a_log_or_in_the_process_list(lan: Lan) -> None:
    token = lan.join_line.split()[-1]
    worker = lan.place.join(lan.up.url, "guest", "--token", token, REMUDA_REGISTRATION_TOKEN="")
    worker.wait_for("ready")
    texts = {"log": lan.first.log + lan.up.log, "worker's log": worker.log, "worker's output": worker.shown}
    texts["bus log"] = (lan.up.data_dir / "nats/server.log").read_text()
    for process in lan.place.processes():
        texts[f"arguments of {process.pid}"] = " ".join(process.cmdline())
    assert len(texts) >= 4 + len(("up", "nats-server", "worker", "guest"))
    found = {where for where, text in texts.items() for secret in lan.secrets() if secret in text}
    assert found == set()
    assert not any(re.search(r"eyJ[\w-]{20}|\bS[AOU][A-Z2-7]{56}\b", text) for text in texts.values())


def test_printed_line_makes_a_bare_machine_a_node(lan: Lan) -> None:
    machine = bare_machine(lan.place.folder / "bare", uv=True)
    # Another name than the host's, which the line leaves to the machine it is typed on.
    line = f"exec {lan.join_line} --name bare"
    with subprocess.Popen(["sh", "-c", line], env=machine, stdout=subprocess.DEVNULL) as process:
        try:
            lan.up.wait_for("bare", within=100)
        finally:
            process.kill()
