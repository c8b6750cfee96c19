"""Several frontends on one PostgreSQL and one NATS server: equal, of one mind, and each of them may die."""

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from tests.integration.fleet.services import served
from tests.support.nats_servers import plain_server
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.processes import Frontend, Json, Ranch, ranch
from tests.support.waiting import wait_until_blocking


@dataclass
class Pair:
    place: Ranch
    postgres: PostgresServer
    bus_url: str
    database_url: str

    def __post_init__(self) -> None:
        self.a, self.b = (self.start(name) for name in ("a", "b"))

    def start(self, name: str) -> Frontend:
        """Quick to judge, so that a wrong verdict would show."""
        soon = ("--node-unhealthy-after", "2s", "--node-offline-after", "4s")
        services = {"REMUDA_DATABASE_URL": self.database_url, "REMUDA_NATS_URL": self.bus_url}
        return self.place.frontend(name, *soon, **services, REMUDA_REGISTRATION_TOKEN="")

    @property
    def token(self) -> str:
        with psycopg.connect(self.database_url) as database:
            found = database.execute("SELECT value FROM secrets WHERE name = 'registration_token'").fetchall()
        ((token,),) = found
        assert isinstance(token, str)
        return token


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with (
        ranch(folder / "ranch") as place,
        postgres_server() as postgres,
        served(plain_server(folder)) as bus,
    ):
        yield Pair(place, postgres, bus.url, postgres.new_database())


def as_seen_by(frontend: Frontend, name: str) -> Json:
    node = frontend.nodes()[name]
    return {key: node[key] for key in ("id", "status", "labels")} | {"approved": node["remuda"]["approved"]}


def test_they_share_one_registration_token(pair: Pair) -> None:
    ids = {frontend.register("shared", pair.token)["id"] for frontend in (pair.a, pair.b)}
    assert len(ids) == 1


def test_what_one_is_told_the_other_knows_at_once(pair: Pair) -> None:
    a, b = pair.a, pair.b
    node_id = a.register("told", pair.token)["id"]
    assert as_seen_by(b, "told")["status"] == "pending"
    b.ask("POST", f"/api/nodes/{node_id}/approve").raise_for_status()
    assert as_seen_by(a, "told")["status"] == "healthy"
    a.ask("PATCH", f"/api/nodes/{node_id}/labels", {"rack": "7"}).raise_for_status()
    assert as_seen_by(b, "told")["labels"]["rack"] == "7"
    before = a.nodes()["told"]["last_heartbeat"]
    b.beat(node_id, pair.token)
    assert a.nodes()["told"]["last_heartbeat"] > before
    assert as_seen_by(a, "told") == as_seen_by(b, "told")


def test_both_come_to_the_same_verdict_on_a_silent_node(pair: Pair) -> None:
    node_id = pair.a.register("silent", pair.token)["id"]
    pair.b.ask("POST", f"/api/nodes/{node_id}/approve").raise_for_status()
    for status in ("unhealthy", "offline"):
        pair.a.wait_for("silent", status)
        assert as_seen_by(pair.b, "silent")["status"] == status


def test_death_and_return_of_one_frontend_changes_no_node(pair: Pair) -> None:
    worker = pair.place.join(pair.b.url, "steady", REMUDA_REGISTRATION_TOKEN=pair.token)
    node_id = pair.b.wait_for("steady", "pending")["id"]
    pair.a.ask("POST", f"/api/nodes/{node_id}/approve").raise_for_status()
    worker.wait_for("ready")
    steady = pair.b.wait_for("steady")
    earlier = len(pair.b.events("node_status_changed"))
    statuses, beats = set[str](), set[str]()

    def heard(times: int) -> bool:
        node = pair.b.nodes()["steady"]
        statuses.add(node["status"])
        beats.add(node["last_heartbeat"])
        return len(beats) >= times

    pair.a.kill()
    wait_until_blocking(lambda: heard(12), within=30)  # Longer than it takes to be judged offline.
    pair.a = pair.start("a")
    wait_until_blocking(lambda: heard(len(beats) + 1), within=30)
    assert statuses == {"healthy"}
    assert as_seen_by(pair.a, "steady") == as_seen_by(pair.b, "steady")
    assert pair.a.nodes()["steady"]["remuda"]["boot_id"] == steady["remuda"]["boot_id"]
    changes = pair.a.events("node_status_changed") + pair.b.events("node_status_changed")[earlier:]
    assert ("steady", "unhealthy") not in {(change["node"], change["now"]) for change in changes}


def test_frontend_with_a_bus_of_its_own_is_refused_beside_others(pair: Pair) -> None:
    done = pair.place.invoke("frontend", "--port", "0", data="c", REMUDA_DATABASE_URL=pair.database_url)
    assert done.exit_code == 2
    assert "another frontend uses this database" in done.stderr
    assert "--nats-url" in done.stderr
    assert not (pair.place.folder / "c/nats").exists()


def test_frontend_with_a_bus_of_its_own_says_so_when_others_come(pair: Pair) -> None:
    database = {"REMUDA_DATABASE_URL": pair.postgres.new_database()}
    alone = pair.place.frontend("alone", **database)
    assert alone.not_ready() == ""
    pair.place.frontend("late", **database, REMUDA_NATS_URL=pair.bus_url)
    wait_until_blocking(lambda: "the same external NATS server" in alone.not_ready())
