"""Nodes of release 0.1, whose rows have a machine id and neither a secret nor an address they came from, on a
database that this release migrates."""

from collections.abc import AsyncIterator

import pytest

from remuda.host.folder import DataFolder
from tests.integration.api.test_identity import ELSEWHERE, OTHER_SECRET, SECRET, calling, events, registering
from tests.support.first_release import write_database
from tests.support.frontends import Json, LiveFrontend, live_frontend

pytestmark = pytest.mark.anyio


def row(name: str, host: str) -> Json:
    """A node whose worker was stopped for the upgrade."""
    addresses = {"address": f"{host}:50051", "http_address": f"{host}:50050"}
    return {
        "id": f"id-of-{name}",
        "name": name,
        "machine_id": f"machine-{name}",
        "departed": True,
        **addresses,
    }


ROWS = {name: row(name, "127.0.0.1") for name in ("upgraded", "old", "attacked")}
ROWS["named"] = row("named", "gpu-2.lan")


@pytest.fixture(scope="module")
async def migrated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    folder = tmp_path_factory.mktemp("migrated")
    write_database(DataFolder(folder / "data").database, *ROWS.values())
    async with live_frontend(folder / "data") as live:
        yield live


def registration(name: str, **facts: object) -> Json:
    """As a worker of 0.1 sends it; with a secret, as one of this release does."""
    return {key: value for key, value in ROWS[name].items() if key not in ("id", "departed")} | facts


async def shown(frontend: LiveFrontend, node_id: str) -> tuple[str, str]:
    node = await frontend.node(node_id)
    return node["labels"]["room"], node["remuda"]["identified_by"]


async def test_the_first_secret_from_the_last_address_is_bound(migrated: LiveFrontend) -> None:
    upgraded = registration("upgraded", node_secret=SECRET)
    elsewhere = (await registering(migrated, upgraded, source=ELSEWHERE)).json()
    assert (elsewhere["status"], "nats_jwt" in elsewhere) == ("pending", False)
    another = upgraded | {"machine_id": "another", "node_secret": OTHER_SECRET}
    assert (await registering(migrated, another)).status_code == 409, "somebody else waits for the name"
    bound = (await registering(migrated, upgraded)).json()
    assert (bound["id"], bool(bound["nats_jwt"]), bool(bound["worker_tokens"])) == (
        "id-of-upgraded",
        True,
        True,
    )
    assert await shown(migrated, bound["id"]) == ("attic", "secret")
    assert "identified" in await events(migrated, "upgraded")
    assert (await registering(migrated, registration("upgraded"))).status_code == 409, "only with its secret"
    moved = upgraded | {"address": f"{ELSEWHERE}:1", "http_address": f"{ELSEWHERE}:2"}
    assert (await registering(migrated, moved, source=ELSEWHERE)).json()["id"] == bound["id"]


async def test_a_worker_that_was_not_upgraded_goes_on_from_its_address(migrated: LiveFrontend) -> None:
    node = ROWS["old"]["id"]
    for source, status in ((ELSEWHERE, 401), ("127.0.0.1", 200)):
        async with calling(migrated, migrated.token, source) as worker:
            assert (await worker.post(f"/api/node/{node}/heartbeat")).status_code == status
    again = (await registering(migrated, registration("old"))).json()
    assert (again["id"], bool(again["nats_jwt"]), "worker_tokens" in again) == (node, True, False)
    assert await shown(migrated, node) == ("attic", "address")


async def test_its_name_is_not_given_to_others(migrated: LiveFrontend) -> None:
    await migrated.heartbeat(ROWS["attacked"]["id"])
    for facts in ({}, {"machine_id": ""}, {"node_secret": SECRET}):
        attack = registration("attacked", **facts)
        refused = await registering(migrated, attack, source=ELSEWHERE)
        assert (refused.status_code, "nats_jwt" in refused.text) == (409, False)
    assert (await events(migrated, "attacked")).count("name_contested") == 1


async def test_one_that_advertised_a_host_name_is_approved_once_more(migrated: LiveFrontend) -> None:
    upgraded = registration("named", node_secret=SECRET)
    claim = (await registering(migrated, upgraded)).json()
    assert (claim["status"], "nats_jwt" in claim) == ("pending", False)
    assert (await migrated.admin.post(f"/api/nodes/{claim['id']}/approve")).status_code == 200
    assert (await registering(migrated, upgraded)).json()["nats_jwt"]
    assert await shown(migrated, claim["id"]) == ("attic", "secret")
