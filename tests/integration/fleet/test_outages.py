"""A frontend that loses its database or its bus says so, judges nobody meanwhile, and recovers by itself."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from remuda.host.ports import free_port
from tests.integration.fleet.services import served
from tests.support.nats_servers import PlainServer, plain_server
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.processes import Frontend, ranch
from tests.support.waiting import wait_until_blocking

OFFLINE_AFTER_S = 2.0


@dataclass
class Bus:
    folder: Path
    port: int
    stack: ExitStack
    server: PlainServer | None = None

    def start(self) -> None:
        self.server = self.stack.enter_context(served(plain_server(self.folder, port=self.port)))

    def kill(self) -> None:
        assert self.server is not None
        self.server.kill()


@dataclass(frozen=True, slots=True)
class Site:
    frontend: Frontend
    postgres: PostgresServer
    bus: Bus

    def wait_until_heard_anew(self) -> None:
        before = self.frontend.nodes()["worker"]["last_heartbeat"]
        wait_until_blocking(lambda: self.frontend.nodes()["worker"]["last_heartbeat"] > before, within=30)

    def thought_ill_of(self) -> list[str]:
        changes = self.frontend.events("node_status_changed")
        return [change["now"] for change in changes if change["now"] != "healthy"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with ranch(folder / "ranch") as place, postgres_server() as postgres, ExitStack() as stack:
        bus = Bus(folder, free_port("127.0.0.1"), stack)
        bus.start()
        soon = ("--node-unhealthy-after", "1s", "--node-offline-after", f"{OFFLINE_AFTER_S:g}s")
        services = {
            "REMUDA_NATS_URL": f"nats://127.0.0.1:{bus.port}",
            "REMUDA_DATABASE_URL": postgres.new_database(),
        }
        frontend = place.frontend("frontend", "--auto-approve", *soon, **services)
        place.join(frontend.url, "worker").wait_for("ready")
        frontend.wait_for("worker")  # Its first heartbeat is stored before the database goes.
        yield Site(frontend, postgres, bus)


def outlast(holds: Callable[[], bool]) -> None:
    """See that it holds for longer than it takes to judge a node offline, listening intervals included."""
    until = time.monotonic() + 2 * OFFLINE_AFTER_S

    def over() -> bool:
        assert holds()
        return time.monotonic() > until

    wait_until_blocking(over, within=30)


def test_lost_database(site: Site) -> None:
    frontend = site.frontend
    site.postgres.kill()
    reason = wait_until_blocking(frontend.not_ready, within=30)
    assert "the database" in reason
    assert site.postgres.password not in reason
    outlast(lambda: frontend.ask("GET", "/api/nodes").status_code == 503)
    assert frontend.ask("GET", "/healthz").status_code == 200
    site.postgres.start()
    wait_until_blocking(lambda: frontend.not_ready() == "", within=30)
    assert frontend.statuses() == {"worker": "healthy"}
    site.wait_until_heard_anew()
    assert site.thought_ill_of() == []


def test_lost_bus(site: Site) -> None:
    frontend = site.frontend
    site.bus.kill()
    assert "bus" in wait_until_blocking(frontend.not_ready, within=30)
    outlast(lambda: frontend.statuses() == {"worker": "healthy"})
    assert site.thought_ill_of() == []
    site.bus.start()
    wait_until_blocking(lambda: frontend.not_ready() == "", within=30)
    # From here on its silence counts, and it may take longer to connect than it is given here.
    site.wait_until_heard_anew()
    frontend.wait_for("worker")


def test_stop_without_a_database(site: Site) -> None:
    site.postgres.kill()
    wait_until_blocking(site.frontend.not_ready, within=30)
    assert site.frontend.stop() == 0
    assert "Traceback" not in site.frontend.log
