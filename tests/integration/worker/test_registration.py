"""A worker finds its frontend, is let in, and stays in."""

from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr

from remuda.bus.auth import account_user
from remuda.bus.credentials import ClusterKeys
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import Conflict, Invalid, Misconfigured, NodeRemoved, RemudaError, Unauthorized
from remuda.core.ids import NodeId
from remuda.host.ports import free_port
from remuda.wire import subjects
from remuda.worker.enrolment import BusPolicy, WorkerPhase
from tests.integration.worker.rig import NAME, OFTEN, make_worker, ready, running, wait_for_phase
from tests.peers.localai_frontend import LocalAiFrontend, Mint
from tests.support.nats_servers import CLOCK, PlainServer, connected, operator_server, plain_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

OURS = {"remuda": {"version": "0.1.0", "features": []}}


async def test_the_registration_holds_what_the_contract_asks_for(frontend: LocalAiFrontend) -> None:
    frontend.token = "s3cret"
    async with ready(frontend, token=SecretStr("s3cret")):
        call = frontend.of("register")[0]
    assert call.authorization == "Bearer s3cret"
    assert call.body["token"] == "s3cret"
    assert call.body.keys() == {
        *("name", "address", "http_address", "token", "total_vram", "available_vram", "total_ram"),
        *("available_ram", "total_disk", "available_disk", "gpu_vendor", "gpu_compute_capability"),
        *("capability", "max_replicas_per_model", "labels", "machine_id", "remuda"),
    }


async def test_a_frontend_that_knows_no_secrets_gets_the_shared_token_with_every_call(
    frontend: LocalAiFrontend,
) -> None:
    frontend.token = "s3cret"
    secret = SecretStr("rmn_of-this-machine")
    async with ready(frontend, token=SecretStr("s3cret"), secret=secret, heartbeat_interval=OFTEN):
        await wait_until(lambda: frontend.of("heartbeat"))
    assert {"register", "heartbeat", "drain", "models", "deregister"} == set(frontend.actions)
    assert {call.authorization for call in frontend.calls} == {"Bearer s3cret"}


async def test_addresses_are_the_workers_end_of_the_connection(frontend: LocalAiFrontend) -> None:
    async with ready(frontend):
        body = frontend.of("register")[0].body
    host, _, base = str(body["address"]).rpartition(":")
    assert host == "127.0.0.1"
    assert body["http_address"] == f"127.0.0.1:{int(base) - 1}"


async def test_a_frontend_that_comes_up_later_is_found(nats: PlainServer) -> None:
    frontend = LocalAiFrontend(port=free_port("127.0.0.1"))
    frontend.extra_reply = {"nats_url": nats.url}
    async with running(frontend.url) as worker:
        await wait_for_phase(worker, WorkerPhase.REGISTERING, because="cannot be reached")
        async with frontend:
            await wait_for_phase(worker, WorkerPhase.READY)
            worker.stop("seen enough")
            await wait_until(lambda: frontend.of("deregister"))


async def test_a_wrong_token_stops_at_once_and_says_which(frontend: LocalAiFrontend) -> None:
    frontend.token = "s3cret"
    with pytest.raises(Unauthorized, match="--token") as refusal:
        await make_worker(frontend.url, token=SecretStr("guess")).run()
    assert frontend.actions == ["register"]
    assert "guess" not in str(refusal.value)


@pytest.mark.parametrize(("status", "refusal"), [(400, Invalid), (409, Conflict)])
async def test_a_refused_node_stops_at_once_with_the_frontends_words(
    frontend: LocalAiFrontend, status: int, refusal: type[RemudaError]
) -> None:
    frontend.misbehaviour["register"] = status
    with pytest.raises(refusal, match="told to fail"):
        await make_worker(frontend.url).run()
    assert frontend.actions == ["register"]


async def test_a_failing_frontend_is_asked_again(frontend: LocalAiFrontend) -> None:
    frontend.misbehaviour["register"] = 500
    async with running(frontend.url) as worker:
        await wait_for_phase(worker, WorkerPhase.REGISTERING, because="answered 500: told to fail")
        del frontend.misbehaviour["register"]
        await wait_for_phase(worker, WorkerPhase.READY)


async def test_without_a_bus_address_the_setting_is_named(frontend: LocalAiFrontend) -> None:
    frontend.extra_reply = {}
    with pytest.raises(Misconfigured, match="--nats-url"):
        await make_worker(frontend.url).run()


async def test_a_pending_worker_waits_and_gets_in_once_approved(frontend: LocalAiFrontend) -> None:
    frontend.auto_approve = False
    frontend.extra_reply |= OURS
    async with running(frontend.url) as worker:
        await wait_for_phase(worker, WorkerPhase.WAITING_FOR_APPROVAL)
        assert frontend.node(NAME).heartbeats == []
        frontend.approve(NAME)
        await wait_for_phase(worker, WorkerPhase.READY)


async def test_with_a_localai_frontend_a_pending_worker_reports_already(frontend: LocalAiFrontend) -> None:
    frontend.auto_approve = False
    async with running(frontend.url) as worker:
        await wait_until(lambda: frontend.of("heartbeat"))
        assert worker.state.value.phase is WorkerPhase.WAITING_FOR_APPROVAL
        frontend.approve(NAME)
        await wait_for_phase(worker, WorkerPhase.READY)


async def test_a_forgotten_node_registers_again_and_hears_under_its_new_id(
    frontend: LocalAiFrontend, nats: PlainServer
) -> None:
    async with running(frontend.url, heartbeat_interval=OFTEN) as worker:
        first = (await wait_for_phase(worker, WorkerPhase.READY)).node_id
        frontend.forget(NAME)
        with anyio.fail_after(20):
            state = await worker.state.until(
                lambda state: state.phase is WorkerPhase.READY and state.node_id != first
            )
        assert state.node_id is not None
        async with connected(nats.url) as bus:
            await bus.publish(subjects.node_stop(state.node_id), b"null")
            await wait_for_phase(worker, WorkerPhase.STOPPING)


async def test_a_worker_that_the_bus_did_not_tell_of_its_removal_learns_it_by_its_heartbeat(
    frontend: LocalAiFrontend,
) -> None:
    frontend.removal_reason = "node_removed"
    worker = make_worker(frontend.url, heartbeat_interval=OFTEN)
    async with anyio.create_task_group() as tasks:

        async def remove() -> None:
            await wait_for_phase(worker, WorkerPhase.READY)
            frontend.forget(NAME)

        tasks.start_soon(remove)
        with pytest.raises(NodeRemoved, match=f"removed by an administrator on {frontend.url}") as removed:
            await worker.run()
    assert removed.value.hint == f"join again with: remuda join {frontend.url} --token TOKEN"
    assert len(frontend.of("register")) == 1, "it does not come back by itself"


async def test_a_bus_that_moved_is_found_through_the_frontend(
    frontend: LocalAiFrontend, nats: PlainServer, tmp_path: Path
) -> None:
    async with ready(frontend) as worker, plain_server(tmp_path) as elsewhere:
        frontend.extra_reply = {"nats_url": elsewhere.url}
        nats.kill()
        await wait_for_phase(worker, WorkerPhase.CONNECTING)
        await wait_for_phase(worker, WorkerPhase.READY)


async def test_a_bus_named_by_the_settings_is_not_asked_about(
    frontend: LocalAiFrontend, nats: PlainServer
) -> None:
    frontend.extra_reply = {"nats_url": "nats://127.0.0.1:1"}
    async with ready(frontend, bus=BusPolicy(url=nats.url)):
        assert len(frontend.of("register")) == 1


def minting(keys: ClusterKeys, ttl: timedelta, expiries: list[datetime]) -> Mint:
    """Credentials as a frontend gives them out, and when each of them runs out."""

    def mint(node_id: str) -> tuple[str, str]:
        allowed = subjects.permissions("backend", NodeId(node_id))
        made = keys.account.mint_worker(
            "backend",
            NodeId(node_id),
            subscribe=allowed.subscribe,
            publish=allowed.publish,
            now=CLOCK.now(),
            ttl=ttl,
        )
        assert made.expires_at is not None
        expiries.append(made.expires_at)
        return made.jwt, made.seed.get_secret_value()

    return mint


async def test_credentials_are_renewed_before_they_expire(tmp_path: Path) -> None:
    keys, expiries = ClusterKeys.create(SystemEntropy()), list[datetime]()
    async with operator_server(tmp_path, keys) as server, LocalAiFrontend() as frontend:
        frontend.mint = minting(keys, timedelta(seconds=4), expiries)
        frontend.extra_reply = {"nats_url": server.url}
        async with ready(frontend) as worker:
            await wait_until(lambda: CLOCK.now() > expiries[0] + timedelta(seconds=1), within=20)
            state = worker.state.value
            assert state.phase is WorkerPhase.READY
            assert state.node_id is not None
            async with connected(server.url, account_user(keys.account, "f", CLOCK)) as bus:
                await bus.publish(subjects.node_stop(state.node_id), b"null")
                await wait_for_phase(worker, WorkerPhase.STOPPING)
    assert len(expiries) >= 2


async def test_a_pending_worker_that_went_ahead_gets_onto_the_bus_once_approved(tmp_path: Path) -> None:
    keys = ClusterKeys.create(SystemEntropy())
    async with operator_server(tmp_path, keys) as server, LocalAiFrontend(auto_approve=False) as frontend:
        frontend.mint = minting(keys, timedelta(hours=1), [])
        async with running(frontend.url, bus=BusPolicy(url=server.url)) as worker:
            await wait_for_phase(worker, WorkerPhase.WAITING_FOR_APPROVAL)
            assert frontend.of("heartbeat") == []
            frontend.approve(NAME)
            await wait_for_phase(worker, WorkerPhase.READY)
            await wait_until(lambda: frontend.of("heartbeat"))
