"""HTTPS with a certificate of one's own: verified by the workers, and no hindrance on the same machine."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from remuda.host.ports import free_port
from tests.support.bare_machine import bare_machine
from tests.support.nats_servers import make_certificates
from tests.support.plain_http import PLAIN
from tests.support.processes import Frontend, Ranch, ranch
from tests.support.waiting import wait_until_blocking


@dataclass(frozen=True, slots=True)
class Site:
    place: Ranch
    up: Frontend
    url: str
    ca: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("https")
    files = make_certificates(folder).server
    assert files.ca is not None
    with ranch(folder / "ranch") as place:
        url = f"https://127.0.0.1:{free_port('127.0.0.1')}"
        public = ("--lan", "--port", url.rpartition(":")[2], "--public-url", url)
        up = place.up("up", *public, "--tls-cert", str(files.cert), "--tls-key", str(files.key))
        yield Site(place, up, url, files.ca)


def test_own_worker_and_commands_use_a_door_of_this_machine(site: Site) -> None:
    assert site.up.url.startswith("http://127.0.0.1:")
    assert "This node   up: healthy" in site.up.shown
    assert site.place.invoke("nodes").exit_code == 0


def test_public_address_speaks_https_only(site: Site) -> None:
    plain = site.url.replace("https://", "http://")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{plain}/healthz", trust_env=False, verify=PLAIN)


def test_worker_that_knows_the_authority_joins(site: Site) -> None:
    site.place.join(site.url, "trusting", "--ca", str(site.ca))
    assert site.up.wait_for("trusting")["status"] == "healthy"


def test_worker_that_does_not_says_so_and_goes_on_trying(site: Site) -> None:
    hold_suspect_text = site.place.join(site.url, "wary")
    (trouble,) = wait_until_blocking(lambda: hold_suspect_text.events("registration_failed"), within=30)
    assert "its certificate is not trusted here" in trouble["reason"]
    assert "--ca" in trouble["reason"]
    assert hold_suspect_text.running
    assert "wary" not in site.up.nodes()


@pytest.mark.long
def test_printed_line_makes_a_bare_machine_a_node(site: Site) -> None:
    machine = bare_machine(site.place.folder / "bare", uv=True)
    shutil.copy(site.ca, machine["HOME"])
    (line,) = (line.strip() for line in site.up.shown.splitlines() if "--ca ca.pem" in line)
    typed = ["sh", "-c", f"exec {line} --name bare"]
    with subprocess.Popen(typed, env=machine, cwd=machine["HOME"], stdout=subprocess.DEVNULL) as process:
        try:
            site.up.wait_for("bare", within=100)
        finally:
            process.kill()
