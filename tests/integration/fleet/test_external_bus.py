"""Somebody else's nats-server, with each way to log in that it may ask for. One that asks for nothing is
used in the tests of several frontends."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from remuda.bus.credentials import ClusterKeys
from tests.integration.fleet.services import served
from tests.support.nats_servers import (
    CLOCK,
    ENTROPY,
    make_certificates,
    operator_server,
    password_settings,
    plain_server,
)
from tests.support.processes import Frontend, Ranch
from tests.support.waiting import wait_until_blocking


@dataclass(frozen=True, slots=True)
class Bus:
    url: str
    frontend: Mapping[str, str] = field(default_factory=dict)  # The settings of each side.
    worker: Mapping[str, str] = field(default_factory=dict)


Kind = Callable[[Path], AbstractContextManager[Bus]]


@contextmanager
def user_and_password(folder: Path) -> Iterator[Bus]:
    login = {"REMUDA_NATS_USER": "remuda", "REMUDA_NATS_PASSWORD": "hunter2"}
    with served(plain_server(folder, password_settings("remuda", "hunter2"))) as server:
        yield Bus(server.url, login, login)


@contextmanager
def credentials_file(folder: Path) -> Iterator[Bus]:
    """Nobody mints credentials here: each side brings its own."""
    keys = ClusterKeys.create(ENTROPY)
    user = keys.account.mint_frontend("fleet", now=CLOCK.now())
    file = folder / "fleet.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user.jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.get_secret_value()}\n------END USER NKEY SEED------\n"
    )
    login = {"REMUDA_NATS_CREDS": str(file)}
    with served(operator_server(folder / "nats", keys)) as server:
        yield Bus(server.url, login, login)


@contextmanager
def account_seed(folder: Path) -> Iterator[Bus]:
    """The frontend mints its own credentials, and those of the workers."""
    keys = ClusterKeys.create(ENTROPY)
    seed = {"REMUDA_NATS_ACCOUNT_SEED": keys.account_seed.get_secret_value()}
    with served(operator_server(folder / "nats", keys)) as server:
        yield Bus(server.url, seed)


@contextmanager
def client_certificate(folder: Path) -> Iterator[Bus]:
    files = make_certificates(folder)
    shown = {
        "REMUDA_NATS_TLS_CA": str(files.client.ca),
        "REMUDA_NATS_TLS_CERT": str(files.client.cert),
        "REMUDA_NATS_TLS_KEY": str(files.client.key),
    }
    with served(plain_server(folder, files.server_settings)) as server:
        yield Bus(server.url.replace("nats://", "tls://"), shown, shown)


@pytest.mark.parametrize(
    "kind",
    [
        user_and_password,
        account_seed,
        pytest.param(credentials_file, marks=pytest.mark.long),
        pytest.param(client_certificate, marks=pytest.mark.long),
    ],
)
def test_worker_is_healthy_on_it(place: Ranch, kind: Kind) -> None:
    folder = place.folder / "bus"
    folder.mkdir()
    with kind(folder) as bus:
        frontend = place.frontend("frontend", "--auto-approve", REMUDA_NATS_URL=bus.url, **bus.frontend)
        assert frontend.not_ready() == ""
        worker = place.join(frontend.url, "worker", **bus.worker)
        frontend.wait_for("worker")
        assert "hunter2" not in frontend.log + worker.log


def test_worker_on_another_bus_than_its_frontend_is_unhealthy_and_says_so(
    common: Ranch, up: Frontend, tmp_path: Path
) -> None:
    with served(plain_server(tmp_path)) as other:
        worker = common.join(up.url, "astray", REMUDA_NATS_URL=other.url)
        up.wait_for("astray")
        said = up.wait_for("astray", "unhealthy")["remuda"]["reasons"]
        assert "another bus" in said[0]
        assert f"port {up.bus_port} " in said[0]
        assert up.statuses()["up"] == "healthy"
        wait_until_blocking(lambda: worker.events("commands_do_not_arrive"))
        assert "another bus" in common.remuda("doctor", data="astray").stdout
        worker.stop()
