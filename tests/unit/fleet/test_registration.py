"""What becomes of a registration, by what it proves and by who holds its name."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from remuda.core import limits
from remuda.core.errors import Conflict, Forbidden, Invalid, Unauthorized, Unavailable
from remuda.core.ids import MachineId, NodeId
from remuda.fleet.admission import AdmissionPolicy, without_invite
from remuda.fleet.health import Reachability
from remuda.fleet.identity import CallerIdentity, is_its_own, may_speak, recognised
from remuda.fleet.model import Candidate, Claim, Invite, Node
from remuda.fleet.registration import (
    Admit,
    Decision,
    Desk,
    Hold,
    Pending,
    Refuse,
    Supersede,
    receive,
    succeeded,
)
from tests.support.nodes import CLOSED, NOON, OPEN, candidate, node

HERE, ELSEWHERE = "127.0.0.1", "10.0.0.66"
NEW = NodeId("new")
LATER = NOON + timedelta(minutes=5)
ALIVE = [Reachability.UP, Reachability.SILENT]
GONE = [Reachability.GONE, Reachability.DEPARTED]


def peer(**changes: Any) -> Candidate:
    """A LocalAI worker."""
    return candidate(**{"machine_id": MachineId(""), "version": "", "source": HERE, **changes})


def known(**changes: Any) -> Node:
    """A LocalAI worker that was approved."""
    return node(**{"machine_id": MachineId(""), "version": "", "source": HERE, **changes})


def decided(
    wanted: Candidate, holder: Node | None, heard: Reachability, policy: AdmissionPolicy = OPEN, **desk: Any
) -> Decision:
    return receive(wanted, Desk(LATER, holder, heard, **desk), NEW, policy)


@pytest.mark.parametrize("heard", list(Reachability))
@pytest.mark.parametrize(
    "wanted",
    [
        peer(),
        candidate(source=HERE),
        candidate(source=HERE, secret_hash="another"),
        peer(invite=Invite("nonce", "token-hash")),
    ],
)
def test_a_name_bound_to_a_secret_is_never_given_away(wanted: Candidate, heard: Reachability) -> None:
    holder = node(secret_hash="its-own", source=HERE)
    decision = decided(wanted, holder, heard, invite="nonce")
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, Conflict)
    setting = "--name;" if wanted.version else "LOCALAI_NODE_NAME;"  # A LocalAI worker has no --name.
    assert setting in (decision.error.hint or "")
    assert "remuda nodes remove" in (decision.error.hint or "")


@pytest.mark.parametrize("heard", list(Reachability))
def test_a_secret_is_recognised_from_wherever_it_comes(heard: Reachability) -> None:
    moved = candidate(secret_hash="its-own", source=ELSEWHERE, address="10.0.0.66:50051")
    decision = decided(moved, node(secret_hash="its-own", source=HERE), heard, CLOSED)
    assert isinstance(decision, Admit)
    assert (decision.node.id, decision.node.source) == (NodeId("node-1"), ELSEWHERE)


@pytest.mark.parametrize(
    ("machine", "source", "binds"),
    [
        ("machine-1", HERE, True),
        ("machine-1", ELSEWHERE, False),
        ("machine-2", HERE, False),
        ("", HERE, False),
    ],
)
@pytest.mark.parametrize("noted", [HERE, ""])
def test_a_row_of_the_first_release_binds_the_secret_that_comes_with_its_machine_id_from_its_address(
    machine: str, source: str, binds: bool, noted: str
) -> None:
    upgraded = candidate(machine_id=MachineId(machine), secret_hash="fresh", source=source)
    assert recognised(upgraded, node(source=noted)) is binds


@pytest.mark.parametrize("heard", list(Reachability))
@pytest.mark.parametrize("policy", [OPEN, CLOSED])
def test_a_peer_on_the_shared_token_comes_back_from_its_address(
    heard: Reachability, policy: AdmissionPolicy
) -> None:
    decision = decided(peer(address="127.0.0.1:50099"), known(), heard, policy)
    assert isinstance(decision, Admit)
    assert (decision.node.id, decision.node.approved) == (NodeId("node-1"), True)


OTHERS = [
    peer(source=ELSEWHERE),
    peer(address="10.0.0.66:50051"),
    peer(http_address="10.0.0.66:50050"),
    peer(machine_id=MachineId("m")),
]


@pytest.mark.parametrize("heard", ALIVE)
@pytest.mark.parametrize("wanted", OTHERS)
def test_another_binding_is_refused_while_the_node_lives_and_noted_once(
    wanted: Candidate, heard: Reachability
) -> None:
    decision = decided(wanted, known(), heard)
    assert isinstance(decision, Refuse)
    assert decision.contested == known(contested_from=wanted.source)
    again = decided(wanted, decision.contested, heard)
    assert isinstance(again, Refuse)
    assert again.contested is None


@pytest.mark.parametrize("heard", GONE)
@pytest.mark.parametrize("wanted", OTHERS)
def test_another_binding_waits_for_a_person_once_the_node_is_gone(
    wanted: Candidate, heard: Reachability
) -> None:
    """Approval is automatic here, for new names."""
    decision = decided(wanted, known(), heard)
    assert isinstance(decision, Hold)
    assert (decision.holder.id, decision.claim.id, decision.new) == (NodeId("node-1"), NEW, True)
    again = decided(wanted, decision.holder, heard)
    assert isinstance(again, Hold)
    assert (again.claim.id, again.new) == (NEW, False)


def a_claim(**changes: Any) -> Claim:
    return replace(Claim(NodeId("claim"), peer(source=ELSEWHERE), NOON, NOON), **changes)


def test_a_second_claim_waits_until_the_first_is_silent() -> None:
    third = peer(source="10.0.0.67")
    holder = known(claim=a_claim(last_heard=LATER - timedelta(seconds=1)))
    assert isinstance(decided(third, holder, Reachability.GONE), Refuse)
    holder = known(claim=a_claim(last_heard=LATER - timedelta(seconds=limits.CLAIM_LIVES_S)))
    assert isinstance(decided(third, holder, Reachability.GONE), Hold)


def test_an_approved_claim_is_a_new_node_with_the_labels_and_overrides_of_the_former() -> None:
    holder = known(claim=a_claim(), drained=True, vram_budget_override="50%", max_replicas_override=3)
    done = succeeded(holder, NodeId("claim"), Reachability.GONE, LATER)
    heir = done.node
    assert (done.former, heir.id, heir.name, heir.approved) == (holder, NodeId("claim"), holder.name, True)
    assert (heir.drained, heir.vram_budget_override, heir.max_replicas_override) == (True, "50%", 3)
    assert heir.last_heartbeat == NOON, "nobody has heard it since"


def test_a_claim_cannot_be_approved_against_a_living_node() -> None:
    with pytest.raises(Conflict, match="running again"):
        succeeded(known(claim=a_claim()), NodeId("claim"), Reachability.UP, LATER)
    with pytest.raises(Conflict, match="any more"):
        succeeded(known(claim=a_claim()), NodeId("former-claim"), Reachability.GONE, LATER)


def test_a_pending_node_that_is_gone_gives_way_under_another_id() -> None:
    decision = decided(peer(source=ELSEWHERE), known(approved=False), Reachability.GONE, CLOSED)
    assert isinstance(decision, Supersede)
    assert (decision.node.id, decision.node.approved) == (NEW, False)


def test_an_invite_is_approval_for_a_peer_from_anywhere() -> None:
    guest = peer(source=ELSEWHERE, invite=Invite("nonce", "token-hash"))
    fresh = decided(guest, None, Reachability.GONE, CLOSED, invite="nonce")
    assert isinstance(fresh, Admit)
    assert (fresh.node.approved, fresh.node.invite, fresh.node.secret_hash) == (True, "nonce", "token-hash")
    again = decided(replace(guest, source="10.1.1.1"), fresh.node, Reachability.UP, CLOSED, invite="nonce")
    assert isinstance(again, Admit)
    assert again.node.id == fresh.node.id
    taken = decided(guest, known(), Reachability.UP, CLOSED, invite="nonce")
    assert isinstance(taken, Supersede)
    assert (taken.node.id, taken.node.approved) == (NEW, True)


def test_a_withdrawn_invite_and_the_shared_token_under_an_invited_name_are_refused() -> None:
    old = decided(peer(invite=Invite("nonce", "h")), None, Reachability.GONE, OPEN, invite="newer")
    shared = decided(peer(), None, Reachability.GONE, OPEN, invite="nonce")
    assert isinstance(old, Refuse)
    assert isinstance(shared, Refuse)
    assert (type(old.error), type(shared.error)) == (Unauthorized, Conflict)


def guest_whose_invite_was_withdrawn() -> Node:
    return without_invite(known(secret_hash="token-hash", invite="nonce"))


def test_a_withdrawn_invite_speaks_for_its_node_no_more() -> None:
    row = guest_whose_invite_was_withdrawn()
    assert not row.approved
    assert not may_speak(CallerIdentity(HERE, "token-hash"), row)
    assert without_invite(node(secret_hash="its-own")) == node(secret_hash="its-own")
    assert without_invite(known()) == known()


@pytest.mark.parametrize("policy", [OPEN, CLOSED])
def test_a_node_whose_invite_was_withdrawn_comes_back_from_its_address_like_any_peer(
    policy: AdmissionPolicy,
) -> None:
    row = guest_whose_invite_was_withdrawn()
    back = decided(peer(), row, Reachability.UP, policy)
    assert isinstance(back, Admit)
    assert (back.node.id, back.node.approved, back.node.invite) == (row.id, policy.auto_approve, "")
    assert isinstance(decided(peer(source=ELSEWHERE), row, Reachability.UP, policy), Refuse)


@pytest.mark.parametrize(("source", "same_node"), [(HERE, True), (ELSEWHERE, False)])
def test_a_node_whose_invite_was_withdrawn_comes_back_with_a_new_one(source: str, same_node: bool) -> None:
    row, guest = guest_whose_invite_was_withdrawn(), peer(source=source, invite=Invite("newer", "newer-hash"))
    back = decided(guest, row, Reachability.UP, CLOSED, invite="newer")
    assert isinstance(back, Admit if same_node else Supersede)
    assert (back.node.id == row.id, back.node.approved, back.node.invite) == (same_node, True, "newer")
    assert may_speak(CallerIdentity(ELSEWHERE, "newer-hash"), back.node)
    former = decided(
        replace(guest, invite=Invite("nonce", "token-hash")), row, Reachability.UP, invite="newer"
    )
    assert isinstance(former, Refuse)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("hub ", Invalid),
        (" hub", Invalid),
        ("Hub", Conflict),
        ("STRASSE", Conflict),
        ("hub 2", None),
        ("hub2", None),
    ],
)
def test_a_new_name_must_not_look_like_another(name: str, error: type[Exception] | None) -> None:
    wanted = peer(name=name)
    decision = decided(wanted, None, Reachability.GONE, names=["hub", "stra\u00dfe"])
    if error is None:
        assert isinstance(decision, Admit)
    else:
        assert isinstance(decision, Refuse)
        assert isinstance(decision.error, error)
        assert error is Invalid or "--name" in (decision.error.hint or "")


@pytest.mark.parametrize("name", ["hub ", "Hub"])
def test_a_node_that_has_such_a_name_keeps_it(name: str) -> None:
    assert isinstance(decided(peer(name=name), known(name=name), Reachability.UP, names=["hub", name]), Admit)


def test_peers_that_prove_nothing_can_be_refused() -> None:
    strict = AdmissionPolicy(auto_approve=True, address_only=False)
    decision = decided(peer(), None, Reachability.GONE, strict)
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, Forbidden)
    assert isinstance(decided(candidate(secret_hash="h"), None, Reachability.GONE, strict), Admit)


# How many may wait.


def pending(count: int, source: str = "", silent_s: float = 0) -> list[Pending]:
    heard = LATER - timedelta(seconds=silent_s)
    return [
        Pending(NodeId(f"{source}-{number}"), source or f"10.1.{number // 200}.{number % 200}", heard)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("waiting", "room"),
    [
        (pending(limits.PENDING_NODES_MAX - 1), True),
        (pending(limits.PENDING_NODES_MAX), False),
        (pending(limits.PENDING_NODES_MAX, silent_s=3599), False),
        (pending(limits.PENDING_NODES_MAX, silent_s=3600), True),
        (pending(limits.PENDING_PER_SOURCE_MAX - 1, HERE), True),
        (pending(limits.PENDING_PER_SOURCE_MAX, HERE), False),
        (pending(limits.PENDING_PER_SOURCE_MAX, HERE, silent_s=3600), True),
        (pending(limits.PENDING_PER_SOURCE_MAX, HERE) + pending(9, silent_s=9999), False),
    ],
)
def test_nodes_that_wait_for_approval_are_bounded(waiting: list[Pending], room: bool) -> None:
    decision = decided(peer(), None, Reachability.GONE, CLOSED, pending=waiting)
    assert isinstance(decision, Admit if room else Refuse)
    if isinstance(decision, Refuse):
        assert isinstance(decision.error, Unavailable)
    assert isinstance(decided(peer(), None, Reachability.GONE, OPEN, pending=waiting), Admit)


def test_three_thousand_registrations_from_everywhere_leave_so_many_that_wait() -> None:
    waiting: list[Pending] = []
    for number in range(3000):
        wanted = peer(source=f"10.2.{number // 250}.{number % 250}")
        decision = receive(wanted, Desk(NOON, None, pending=waiting), NodeId(str(number)), CLOSED)
        if isinstance(decision, Admit):
            waiting = [one for one in waiting if one.id not in decision.forget]
            waiting.append(Pending(decision.node.id, wanted.source, NOON))
    assert len(waiting) == limits.PENDING_NODES_MAX


def test_the_longest_silent_goes_first() -> None:
    waiting = [
        *pending(limits.PENDING_NODES_MAX - 2, silent_s=10),
        Pending(NodeId("old"), "10.9.9.1", LATER - timedelta(hours=2)),
        Pending(NodeId("oldest"), "10.9.9.2", LATER - timedelta(hours=3)),
    ]
    decision = decided(peer(), None, Reachability.GONE, CLOSED, pending=waiting)
    assert isinstance(decision, Admit)
    assert decision.forget == (NodeId("oldest"),)


# Later calls.


@pytest.mark.parametrize(
    ("caller", "of_secret", "of_address"),
    [
        (CallerIdentity(HERE, "its-own"), True, False),
        (CallerIdentity(ELSEWHERE, "its-own"), True, False),
        (CallerIdentity(HERE, "another", shared=True), False, True),
        (CallerIdentity(ELSEWHERE, "another", shared=True), False, False),
        (CallerIdentity(HERE, "another"), False, False),
        (CallerIdentity(), False, False),
    ],
)
def test_only_the_node_speaks_for_itself(caller: CallerIdentity, of_secret: bool, of_address: bool) -> None:
    assert may_speak(caller, node(secret_hash="its-own", source=HERE)) is of_secret
    assert may_speak(caller, known()) is of_address


@pytest.mark.parametrize(
    ("address", "http", "own"),
    [
        ("gpu-1:50052", False, True),
        ("gpu-1:50050", True, False),
        ("files-1:50050", True, True),
        ("GPU-1:50052", False, False),
        ("127.0.0.1:22", False, False),
        ("gpu-1.evil.example:50052", False, False),
        ("", False, True),
    ],
)
def test_a_node_tells_only_of_its_own_host(address: str, http: bool, own: bool) -> None:
    here = node(address="gpu-1:50051", http_address="files-1:50050")
    assert is_its_own(address, here, http=http) is own


@pytest.mark.parametrize("address", ["10.0.0.7:50051", "worker.lan:50051"])
def test_nobody_else_speaks_for_a_row_of_the_first_release_or_takes_it(address: str) -> None:
    """Its source was not recorded. A host name proves nothing, so there a person has to approve it again."""
    row = known(source="", address=address, http_address=address.replace("50051", "50050"))
    taker = peer(source=ELSEWHERE, address=row.address, http_address=row.http_address)
    assert not may_speak(CallerIdentity(ELSEWHERE, shared=True), row)
    assert not recognised(taker, row)
    assert not recognised(
        replace(taker, machine_id=MachineId("m"), secret_hash="taken"),
        replace(row, machine_id=MachineId("m")),
    )


def test_a_row_of_the_first_release_is_known_by_the_address_it_advertises() -> None:
    row = known(source="", address="10.0.0.7:50051", http_address="10.0.0.7:50050")
    assert may_speak(CallerIdentity("10.0.0.7", shared=True), row)
    assert recognised(peer(source="10.0.0.7", address=row.address, http_address=row.http_address), row)


def test_a_peer_that_begins_to_serve_files_on_its_own_host_is_the_same_peer() -> None:
    row = known(source="10.0.0.7", address="10.0.0.7:50051", http_address="")
    assert recognised(peer(source="10.0.0.7", address=row.address, http_address="10.0.0.7:50050"), row)
    assert not recognised(peer(source="10.0.0.7", address=row.address, http_address="10.0.0.66:50050"), row)


def test_nodes_that_approve_themselves_are_bounded() -> None:
    names = [f"n{number}" for number in range(limits.NODES_MAX)]

    assert isinstance(decided(peer(), None, Reachability.GONE, OPEN, names=names[1:]), Admit)
    decision = decided(peer(), None, Reachability.GONE, OPEN, names=names)
    assert isinstance(decision, Refuse)
    assert (decision.error.http_status, str(limits.NODES_MAX) in decision.error.message) == (503, True)
    known_name = decided(peer(name="n1"), known(name="n1"), Reachability.UP, OPEN, names=names)
    assert isinstance(known_name, Admit)
