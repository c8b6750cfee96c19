"""Who is who: what a name, a machine id, the shared token, a secret and an invite each open, and do not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from remuda.bus.auth import AuthSource, UserJwt, fixed
from remuda.core import limits
from remuda.core.ids import NodeId
from remuda.wire.nodes import Departure, Heartbeat, RegisterRequest
from remuda.worker.frontend import Frontend
from tests.support.clocks import AheadClock
from tests.support.frontends import PATIENCE_S, Json, LiveFrontend, live_frontend
from tests.support.nats_servers import connected, connecting, until_down, until_shut_out
from tests.support.plain_http import PLAIN

pytestmark = pytest.mark.anyio

WRONG = {"error": "invalid registration token", "reason": "unauthorized"}
NOT_ENOUGH = {
    "error": "the registration token does not prove that this call comes from that node: call from its own "
    "machine with its own secret or invite, or register under another name",
    "reason": "unauthorized",
}
SECRET = "rmn_" + "s" * 40
OTHER_SECRET = "rmn_" + "o" * 40
ELSEWHERE = "127.0.0.66"


@asynccontextmanager
async def calling(
    frontend: LiveFrontend, bearer: str, source: str = "127.0.0.1"
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(local_address=source, verify=PLAIN)
    headers = {"Authorization": f"Bearer {bearer}"}
    async with httpx.AsyncClient(
        base_url=frontend.url, headers=headers, transport=transport, timeout=PATIENCE_S
    ) as client:
        yield client


async def registering(
    frontend: LiveFrontend, body: Json, *, source: str = "127.0.0.1", token: str = ""
) -> httpx.Response:
    bearer = token or frontend.token
    async with calling(frontend, bearer, source) as client:
        return await client.post("/api/node/register", json={**body, "token": bearer})


async def events(frontend: LiveFrontend, name: str) -> list[str]:
    told = (await frontend.admin.get("/api/history", params={"node": name})).json()
    return [entry["event"] for entry in told]


def ours(frontend: LiveFrontend, name: str = "", **facts: object) -> Json:
    """What our worker sends."""
    identity = {"version": "1.0", "boot_id": "boot-1"}
    return frontend.registration(name, machine_id="m-1", node_secret=SECRET, remuda=identity, **facts)


# The attack.


@pytest.mark.parametrize("source", ["127.0.0.1", ELSEWHERE])
@pytest.mark.parametrize(
    "facts", [{}, {"machine_id": "m-1"}, {"node_secret": OTHER_SECRET, "machine_id": "m-1"}]
)
async def test_the_name_of_a_node_with_a_secret_gives_nobody_its_credentials(
    frontend: LiveFrontend, source: str, facts: Json
) -> None:
    node = (await registering(frontend, ours(frontend))).json()
    before = await frontend.node(node["id"])
    attack = frontend.registration(node["name"], address="127.0.0.66:50051", **facts)
    refused = await registering(frontend, attack, source=source)
    assert refused.status_code == 409
    assert "nats_jwt" not in refused.text
    told = ("give this one another name with LOCALAI_NODE_NAME", "remuda nodes remove")  # It says no version.
    assert words(refused, *told) == list(told)
    after = await frontend.node(node["id"])
    assert after["remuda"].pop("contested_from") == source
    for shown in (before, after):
        del shown["remuda"]["reasons"], shown["updated_at"]  # It may have been dialled meanwhile.
        shown["remuda"].pop("unreachable", None)
    assert after == before
    assert (await registering(frontend, attack, source=source)).status_code == 409
    assert (await events(frontend, node["name"])).count("name_contested") == 1


def words(reply: httpx.Response, *wanted: str) -> list[str]:
    return [word for word in wanted if word in reply.json()["error"]["message"]]


async def test_the_name_of_a_node_with_a_secret_is_not_given_away_when_it_is_gone(
    frontend: LiveFrontend,
) -> None:
    node = (await registering(frontend, ours(frontend))).json()
    async with calling(frontend, SECRET) as worker:
        assert (await worker.post(f"/api/node/{node['id']}/deregister")).status_code == 200
    assert (await registering(frontend, frontend.registration(node["name"]))).status_code == 409
    back = await registering(
        frontend, ours(frontend, node["name"], address="127.0.0.7:1"), source="127.0.0.7"
    )
    assert (back.status_code, back.json()["id"]) == (201, node["id"])


CALLS = [
    ("POST", "/heartbeat"),
    ("POST", "/drain"),
    ("POST", "/resume"),
    ("POST", "/deregister"),
    ("DELETE", ""),
    ("GET", "/models"),
]


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_only_a_nodes_secret_speaks_for_it(frontend: LiveFrontend, method: str, path: str) -> None:
    node = (await registering(frontend, ours(frontend))).json()
    tokens = node["worker_tokens"]
    assert len({tokens["http"], tokens["grpc"], frontend.token, SECRET}) == 4
    before = await frontend.status(node["id"])
    for bearer in (frontend.token, OTHER_SECRET, tokens["http"], tokens["grpc"]):
        async with calling(frontend, bearer) as impostor:
            reply = await impostor.request(method, f"/api/node/{node['id']}{path}")
            said = NOT_ENOUGH if bearer == frontend.token else WRONG
            assert (reply.status_code, reply.json()) == (401, said)
    assert await frontend.status(node["id"]) == before
    async with calling(frontend, SECRET, ELSEWHERE) as worker:
        assert (await worker.request(method, f"/api/node/{node['id']}{path}")).status_code == 200
        assert (await worker.request(method, f"/api/node/unknown{path}")).status_code == 404
        assert (await worker.post("/api/node/register", json=ours(frontend))).status_code == 401


async def test_our_worker_speaks_with_its_secret(frontend: LiveFrontend) -> None:
    client = Frontend(frontend.url, SecretStr(frontend.token), secret=SecretStr(SECRET))
    request = RegisterRequest(name="by-our-client", address="127.0.0.1:50051", machine_id="m-1")
    try:
        node = NodeId((await client.register(request)).id)
        await client.heartbeat(node, Heartbeat())
        await client.drain(node, Departure())
        await client.deregister(node, Departure())
        await client.register(request)
    finally:
        await client.aclose()
    assert (await frontend.node(node))["remuda"]["identified_by"] == "secret"


async def test_a_lost_reply_costs_nothing(frontend: LiveFrontend) -> None:
    body = ours(frontend)
    first, again = [(await registering(frontend, body)).json() for _ in range(2)]
    assert (again["id"], again["worker_tokens"]) == (first["id"], first["worker_tokens"])


async def test_a_pending_node_gets_no_tokens(strict_frontend: LiveFrontend) -> None:
    node = (await registering(strict_frontend, ours(strict_frontend))).json()
    assert (node["status"], "worker_tokens" in node) == ("pending", False)
    approved = await strict_frontend.admin.post(f"/api/nodes/{node['id']}/approve")
    assert approved.status_code == 200
    assert (await registering(strict_frontend, ours(strict_frontend, node["name"]))).json()["worker_tokens"]


# Release 0.1: a machine id and no secret.


async def test_a_worker_of_the_first_release_is_known_by_address_and_binds_its_secret_once_upgraded(
    frontend: LiveFrontend,
) -> None:
    old = frontend.registration(machine_id="m-1")
    node = (await registering(frontend, old)).json()
    assert "worker_tokens" not in node
    await frontend.heartbeat(node["id"])
    for machine_id, source in (("m-1", ELSEWHERE), ("m-2", "127.0.0.1")):
        upgraded = frontend.registration(node["name"], machine_id=machine_id, node_secret=SECRET)
        assert (await registering(frontend, upgraded, source=source)).status_code == 409
    upgraded = frontend.registration(node["name"], machine_id="m-1", node_secret=SECRET)
    bound = (await registering(frontend, upgraded)).json()
    assert (bound["id"], bool(bound["worker_tokens"])) == (node["id"], True)
    assert (await frontend.node(node["id"]))["remuda"]["identified_by"] == "secret"
    assert (await registering(frontend, old)).status_code == 409, "from now on only with its secret"


# Contract peers on the shared token.


async def test_a_contract_peer_restarts_and_renews_from_its_address_and_from_no_other(
    frontend: LiveFrontend,
) -> None:
    body = frontend.registration()
    node = (await registering(frontend, body)).json()
    assert (await frontend.node(node["id"]))["remuda"]["identified_by"] == "address"
    again = await registering(frontend, body)
    assert (again.json()["id"], "nats_jwt" in again.json()) == (node["id"], True)
    moved = {**body, "address": f"{ELSEWHERE}:50051"}
    for attack, source in ((body, ELSEWHERE), (moved, "127.0.0.1"), (moved, ELSEWHERE)):
        assert (await registering(frontend, attack, source=source)).status_code == 409
    async with calling(frontend, frontend.token, ELSEWHERE) as impostor:
        for verb in ("heartbeat", "drain", "deregister"):
            assert (await impostor.post(f"/api/node/{node['id']}/{verb}")).status_code == 401
    assert await frontend.status(node["id"]) == "healthy"
    await frontend.heartbeat(node["id"])


async def test_a_peer_that_changed_its_address_takes_its_place_once_a_person_approves(
    frontend: LiveFrontend,
) -> None:
    """Although approval is automatic here: that is for new names."""
    body = frontend.registration(address=f"{ELSEWHERE}:50051")
    node = await frontend.register(body["name"])
    path = f"/api/nodes/{node['id']}"
    await frontend.admin.patch(f"{path}/labels", json={"room": "attic"})
    await frontend.admin.put(f"{path}/vram-budget", json={"value": "50%"})
    await frontend.worker.post(f"/api/node/{node['id']}/deregister")
    claim = (await registering(frontend, body, source=ELSEWHERE)).json()
    assert (claim["status"], "nats_jwt" in claim, claim["id"] != node["id"]) == ("pending", False, True)
    assert (await registering(frontend, body, source=ELSEWHERE)).json()["id"] == claim["id"]
    assert (await registering(frontend, body, source="127.0.0.67")).status_code == 409
    shown = (await frontend.node(node["id"]))["remuda"]
    assert (shown["claim"]["id"], shown["claim"]["source"]) == (claim["id"], ELSEWHERE)
    assert (await frontend.admin.post(f"/api/nodes/{claim['id']}/approve")).status_code == 200
    now = await frontend.node(claim["id"])
    assert (now["name"], now["labels"]["room"], now["vram_budget"]) == (body["name"], "attic", "50%")
    assert (await frontend.admin.get(path)).status_code == 404
    assert (await registering(frontend, body, source=ELSEWHERE)).json()["nats_jwt"]


async def test_a_node_that_is_back_keeps_its_name_from_a_claim(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    await frontend.worker.post(f"/api/node/{node['id']}/deregister")
    body = frontend.registration(node["name"])
    claim = (await registering(frontend, body, source=ELSEWHERE)).json()
    await frontend.heartbeat(node["id"])
    refused = await frontend.admin.post(f"/api/nodes/{claim['id']}/approve")
    assert (refused.status_code, "is running again" in refused.text) == (409, True)
    await frontend.register(node["name"])
    assert "claim" not in (await frontend.node(node["id"]))["remuda"]


async def test_such_peers_can_be_refused(tmp_path: Path) -> None:
    async with live_frontend(tmp_path) as before:
        node = await before.register("peer")
    async with live_frontend(tmp_path, refuse_address_only=True) as frontend:
        refused = await registering(frontend, frontend.registration("peer"))
        assert (refused.status_code, "remuda nodes invite peer" in refused.text) == (403, True)
        beat = await frontend.worker.post(f"/api/node/{node['id']}/heartbeat")
        assert (beat.status_code, beat.json()) == (401, NOT_ENOUGH)
        assert (await registering(frontend, ours(frontend))).status_code == 201


async def test_forwarded_addresses_count_only_from_trusted_proxies(tmp_path: Path) -> None:
    async with live_frontend(tmp_path, trusted_proxies=[ELSEWHERE]) as frontend:
        body = frontend.registration("peer")
        for source, seen in ((ELSEWHERE, "10.1.2.3"), ("127.0.0.1", "127.0.0.1")):
            async with calling(frontend, frontend.token, source) as client:
                headers = {"X-Forwarded-For": "6.6.6.6, 10.1.2.3"}
                named = {**body, "name": f"behind-{source}", "address": "10.1.2.3:50051"}
                reply = await client.post("/api/node/register", json=named, headers=headers)
            assert (await frontend.node(reply.json()["id"]))["remuda"]["source"] == seen


# Invited peers.


async def invited(frontend: LiveFrontend, name: str) -> str:
    reply = await frontend.admin.post("/api/nodes/invites", json={"name": name})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["registration_token"])


async def test_an_invite_is_approval_for_one_name_and_lasts(strict_frontend: LiveFrontend) -> None:
    frontend = strict_frontend
    token = await invited(frontend, "guest")
    assert await invited(frontend, "guest") == token
    body = {"name": "guest", "address": "127.0.0.1:50051"}
    other = await registering(frontend, {**body, "name": "other"}, token=token)
    assert (other.status_code, other.json()) == (401, WRONG)
    assert (await registering(frontend, body)).status_code == 409, "the shared token is not the invite"
    node = (await registering(frontend, body, token=token)).json()
    assert (node["status"], bool(node["nats_jwt"])) == ("healthy", True)
    moved = {**body, "address": f"{ELSEWHERE}:1"}
    assert (await registering(frontend, moved, token=token, source=ELSEWHERE)).json()["id"] == node["id"]
    assert (await registering(frontend, moved, source=ELSEWHERE)).status_code == 409
    for bearer, status in ((token, 200), (frontend.token, 401)):
        async with calling(frontend, bearer) as peer:
            assert (await peer.post(f"/api/node/{node['id']}/heartbeat")).status_code == status
    assert (await frontend.node(node["id"]))["remuda"]["identified_by"] == "invite"
    await frontend.admin.delete(f"/api/nodes/{node['id']}")
    gone = await registering(frontend, body, token=token)
    assert (gone.status_code, "no longer valid" in gone.text) == (401, True)


async def test_an_invite_that_is_withdrawn_lets_nobody_in(frontend: LiveFrontend) -> None:
    token = await invited(frontend, "nobody")
    assert (await frontend.admin.delete("/api/nodes/invites/nobody")).status_code == 200
    assert (await frontend.admin.delete("/api/nodes/invites/nobody")).status_code == 404
    body = {"name": "nobody", "address": "127.0.0.1:50051"}
    assert (await registering(frontend, body, token=token)).status_code == 401


async def test_a_node_whose_invite_is_withdrawn_is_shut_out_until_it_has_a_new_one(
    strict_frontend: LiveFrontend,
) -> None:
    frontend, body = strict_frontend, {"name": "guest-2", "address": "127.0.0.1:50051"}
    token = await invited(frontend, "guest-2")
    node = (await registering(frontend, body, token=token)).json()
    path = f"/api/node/{node['id']}"
    async with calling(frontend, token) as peer:
        assert (await peer.post(f"{path}/heartbeat")).status_code == 200
        assert (await frontend.admin.delete("/api/nodes/invites/guest-2")).status_code == 200
        for method, verb in CALLS:
            refused = await peer.request(method, f"{path}{verb}")
            assert (refused.status_code, refused.json()) == (401, WRONG), verb
    assert (await registering(frontend, body, token=token)).status_code == 401
    assert await frontend.status(node["id"]) == "pending"
    assert (await registering(frontend, body, source=ELSEWHERE)).status_code == 409
    newer = await invited(frontend, "guest-2")
    assert newer != token
    back = (await registering(frontend, body, token=newer)).json()
    assert (back["status"], bool(back["nats_jwt"])) == ("healthy", True)
    for bearer, status in ((newer, 200), (token, 401)):
        async with calling(frontend, bearer) as peer:
            assert (await peer.post(f"/api/node/{back['id']}/heartbeat")).status_code == status


async def test_names_that_look_like_a_nodes_are_refused(frontend: LiveFrontend) -> None:
    name = str((await registering(frontend, ours(frontend))).json()["name"])
    for other, status in ((f"{name} ", 400), (f" {name}", 400), (name.upper(), 409)):
        refused = await registering(frontend, frontend.registration(other))
        assert refused.status_code == status, refused.text
        invite = await frontend.admin.post("/api/nodes/invites", json={"name": other})
        assert invite.status_code == status, invite.text
    assert words(refused, "--name", name) == ["--name", name]
    assert (await registering(frontend, ours(frontend, name))).status_code == 201


async def test_an_invite_replaces_a_peer_known_by_address_only(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    token = await invited(frontend, node["name"])
    assert (await frontend.register(node["name"]))["id"] == node["id"], "it may go on until it has the invite"
    body = frontend.registration(node["name"])
    bound = (await registering(frontend, body, token=token)).json()
    assert bound["id"] == node["id"], "it comes from the same address"
    other = await frontend.register()
    token, body = await invited(frontend, other["name"]), frontend.registration(other["name"])
    moved = (await registering(frontend, body, token=token, source=ELSEWHERE)).json()
    assert (moved["id"] != other["id"], moved["status"]) == (True, "healthy")
    assert (await frontend.admin.get(f"/api/nodes/{other['id']}")).status_code == 404


async def test_a_node_with_a_secret_needs_no_invite(frontend: LiveFrontend) -> None:
    node = (await registering(frontend, ours(frontend))).json()
    reply = await frontend.admin.post("/api/nodes/invites", json={"name": node["name"]})
    assert (reply.status_code, "needs no invite" in reply.text) == (409, True)


async def test_the_bus_key_of_a_withdrawn_invite_is_refused(frontend: LiveFrontend) -> None:
    token = await invited(frontend, "guest-3")
    body = {"name": "guest-3", "address": "127.0.0.1:50051"}
    node, kept = (await registering(frontend, body, token=token)).json(), await frontend.register()

    async with connected(node["nats_url"], login(node)) as bus:
        assert (await frontend.admin.delete("/api/nodes/invites/guest-3")).status_code == 200
        await until_shut_out(bus)
    async with connecting(node["nats_url"], login(node)) as bus:
        assert "does not accept our credentials" in await until_down(bus)
    async with connected(kept["nats_url"], login(kept)):
        assert await frontend.status(kept["id"]) == "healthy"


def login(registered: Json) -> AuthSource:
    return fixed(UserJwt(registered["nats_jwt"], SecretStr(registered["nats_user_seed"])))


async def test_when_too_many_wait_those_silent_for_an_hour_go_first(tmp_path: Path) -> None:
    clock = AheadClock()
    async with live_frontend(tmp_path, auto_approve=False, clock=clock) as frontend:
        first = await frontend.register("first")
        clock.ahead += timedelta(seconds=limits.PENDING_SILENCE_S - 600)
        others = [await frontend.register(f"w{n}") for n in range(limits.PENDING_PER_SOURCE_MAX - 1)]
        full = await registering(frontend, frontend.registration("late"))
        assert (full.status_code, "too many nodes wait for approval" in full.text) == (503, True)
        clock.ahead += timedelta(seconds=1200)
        await frontend.heartbeat(others[0]["id"])
        assert (await frontend.register("late"))["status"] == "pending"
        assert (await frontend.admin.get(f"/api/nodes/{first['id']}")).status_code == 404
        assert [await frontend.status(other["id"]) for other in others] == ["pending"] * len(others)
        assert (await registering(frontend, frontend.registration("later"))).status_code == 503


async def test_a_proxy_on_this_machine_lets_nobody_pass_for_local(tmp_path: Path) -> None:
    async with live_frontend(tmp_path) as frontend:
        for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
            for path in ("/api/nodes", "/v1/models", "/healthz"):
                refused = await frontend.anyone.get(path, headers={name: "for=10.1.2.3"})
                assert (refused.status_code, "--trusted-proxies" in refused.text) == (403, True), path
                assert "--lan or --host 0.0.0.0" in refused.text
        assert (await frontend.anyone.get("/v1/models")).status_code == 200
    async with live_frontend(tmp_path, trusted_proxies=["127.0.0.1"]) as frontend:
        reply = await frontend.anyone.get("/v1/models", headers={"X-Forwarded-For": "127.0.0.1"})
        assert reply.status_code == 200
