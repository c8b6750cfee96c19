"""What a worker makes of the frontend's answer to its registration."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Misconfigured
from remuda.core.ids import NodeId
from remuda.wire.nodes import FrontendIdentity, RegisterReply
from remuda.worker.enrolment import (
    BusPolicy,
    Enrolment,
    EnrolmentStatus,
    IssuedBusUser,
    Verdict,
    WorkerPhase,
    WorkerState,
    describe,
    judge,
    refresh_after,
)

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
BUS = "nats://bus:4222"
OURS = FrontendIdentity(version="0.1.0")


def jwt(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"


def reply(status: str = "healthy", **changes: object) -> RegisterReply:
    return RegisterReply.model_validate({"id": "n1", "status": status, "nats_url": BUS} | changes)


def verdict(answer: RegisterReply, policy: BusPolicy | None = None, pending_replies: int = 1) -> Verdict:
    return judge(answer, policy or BusPolicy(), NOW, pending_replies=pending_replies, fraction=0.0)


def test_an_approved_node_without_credentials_has_nothing_to_renew() -> None:
    made = verdict(reply())
    assert made.again_after is None
    assert made.enrolment.approved
    assert made.enrolment.bus_usable


def test_credentials_are_renewed_after_three_quarters_of_their_life() -> None:
    made = verdict(reply(nats_jwt=jwt(exp=NOW.timestamp() + 1000), nats_user_seed="SU"))
    assert made.again_after == timedelta(seconds=750)


def test_credentials_without_expiry_are_not_renewed() -> None:
    made = verdict(reply(nats_jwt=jwt(sub="U"), nats_user_seed="SU"))
    assert made.again_after is None
    assert made.enrolment.credentials == IssuedBusUser(jwt(sub="U"), "SU")


@pytest.mark.parametrize("broken", ["", "x", "a.b.c", "e30.bnVsbA.x", f"a.{jwt(exp='soon')}"])
def test_a_jwt_that_cannot_be_read_is_left_to_the_server(broken: str) -> None:
    assert refresh_after(broken, NOW) is None


@given(life_s=st.integers(10, 10**7), ahead_s=st.integers(-(10**7), 10**7))
def test_a_wrong_clock_never_makes_the_renewal_too_late(life_s: int, ahead_s: int) -> None:
    minted_at = NOW.timestamp() + ahead_s
    after = refresh_after(jwt(iat=minted_at, exp=minted_at + life_s), NOW)
    assert after is not None
    assert timedelta(seconds=1) <= after < timedelta(seconds=life_s)


@pytest.mark.parametrize("wrong_by", [timedelta(days=-3000), timedelta(days=2)])
def test_a_clock_that_is_days_off_does_not_renew_all_the_time(wrong_by: timedelta) -> None:
    minted_at = (NOW - wrong_by).timestamp()
    day = timedelta(days=1)
    assert refresh_after(jwt(iat=minted_at, exp=minted_at + day.total_seconds()), NOW) == day * 0.75


def test_the_settings_address_wins_over_the_frontends() -> None:
    assert verdict(reply(), BusPolicy(url="nats://mine:1")).enrolment.bus_url == "nats://mine:1"


def test_without_any_bus_address_the_setting_is_named() -> None:
    with pytest.raises(Misconfigured, match="--nats-url"):
        verdict(reply(nats_url=""))


def test_own_login_makes_the_frontends_credentials_unused() -> None:
    answer = reply(nats_jwt=jwt(exp=NOW.timestamp() + 100), nats_user_seed="SU")
    made = verdict(answer, BusPolicy(own_login=True))
    assert made.enrolment.credentials is None
    assert made.again_after is None
    assert made.enrolment.bus_usable


def test_pending_with_a_remuda_frontend_waits() -> None:
    made = verdict(reply("pending", remuda=OURS))
    assert not made.enrolment.bus_usable
    assert made.again_after == timedelta(seconds=5)


def test_pending_with_a_localai_frontend_goes_ahead_but_keeps_asking() -> None:
    made = verdict(reply("pending", nats_url=""), BusPolicy(url=BUS))
    assert made.enrolment.bus_usable
    assert not made.enrolment.approved
    assert made.again_after == timedelta(seconds=5)


def test_pending_without_a_bus_address_waits_for_it() -> None:
    assert not verdict(reply("pending", nats_url="")).enrolment.bus_usable


def test_who_insists_on_credentials_waits_for_them() -> None:
    made = verdict(reply(), BusPolicy(url=BUS, require_auth=True))
    assert made.enrolment.credentials_awaited
    assert made.again_after == timedelta(seconds=5)


@pytest.mark.parametrize("half", [{"nats_jwt": "a.b.c"}, {"nats_user_seed": "SU"}])
def test_half_a_login_is_none(half: dict[str, str]) -> None:
    assert not verdict(reply(**half)).enrolment.bus_usable


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_waiting_grows_and_stays_bounded(pending_replies: int, fraction: float) -> None:
    made = judge(reply("pending"), BusPolicy(), NOW, pending_replies=pending_replies, fraction=fraction)
    assert made.again_after is not None
    assert timedelta(seconds=2.5) <= made.again_after <= timedelta(seconds=30)


def test_secrets_are_not_part_of_the_text() -> None:
    made = verdict(reply(nats_url="nats://u:hunter2@bus", nats_jwt="a.hunter2.c", nats_user_seed="hunter2"))
    assert "hunter2" not in repr(made)


NODE = NodeId("n1")


def enrolled(*, approved: bool = True, awaited: bool = False, trouble: str = "") -> EnrolmentStatus:
    return EnrolmentStatus(Enrolment(NODE, approved, "nats://bus", None, awaited), trouble)


@pytest.mark.parametrize(
    ("standing", "reachable_as", "stopping", "state"),
    [
        (EnrolmentStatus(trouble="no route"), None, None, WorkerState(WorkerPhase.REGISTERING, "no route")),
        (enrolled(approved=False), None, None, WorkerState(WorkerPhase.WAITING_FOR_APPROVAL, "", NODE)),
        (enrolled(approved=False), NODE, None, WorkerState(WorkerPhase.WAITING_FOR_APPROVAL, "", NODE)),
        (enrolled(), None, None, WorkerState(WorkerPhase.CONNECTING, "refused", NODE)),
        (enrolled(), NodeId("before"), None, WorkerState(WorkerPhase.CONNECTING, "refused", NODE)),
        (enrolled(), NODE, None, WorkerState(WorkerPhase.READY, "", NODE)),
        (enrolled(trouble="no answer"), NODE, None, WorkerState(WorkerPhase.READY, "", NODE)),
        (enrolled(), NODE, "SIGTERM", WorkerState(WorkerPhase.STOPPING, "SIGTERM", NODE)),
        (EnrolmentStatus(), None, "SIGTERM", WorkerState(WorkerPhase.STOPPING, "SIGTERM", None)),
    ],
)
def test_the_state_follows_from_the_facts(
    standing: EnrolmentStatus, reachable_as: NodeId | None, stopping: str | None, state: WorkerState
) -> None:
    assert describe(standing, reachable_as, "refused", stopping) == state


def test_missing_bus_credentials_are_named() -> None:
    state = describe(enrolled(awaited=True), None, "", None)
    assert (state.phase, state.reason) == (
        WorkerPhase.CONNECTING,
        "the frontend has given no bus credentials yet",
    )
