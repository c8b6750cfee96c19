"""Decides on a registration: whether its name is free, the node's own, or another machine's. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from remuda.core import limits
from remuda.core.errors import Conflict, Forbidden, Invalid, RemudaError, Unauthorized, Unavailable
from remuda.core.hints import pasted
from remuda.core.ids import NodeId
from remuda.fleet import admission
from remuda.fleet.admission import AdmissionPolicy
from remuda.fleet.health import Reachability
from remuda.fleet.identity import recognised, same_claimant
from remuda.fleet.model import Candidate, Claim, Node

_CLAIM_LIVES = timedelta(seconds=limits.CLAIM_LIVES_S)
_PENDING_KEPT = timedelta(seconds=limits.PENDING_SILENCE_S)


@dataclass(frozen=True, slots=True)
class Pending:
    """A node that waits for approval."""

    id: NodeId
    source: str
    last_heard: datetime


@dataclass(frozen=True, slots=True)
class Desk:
    """What a registration is judged by. `heard` tells of `known`, the node of that name, if there is one;
    `pending` and `names` are filled in where there is none."""

    now: datetime
    known: Node | None
    heard: Reachability = Reachability.GONE
    invite: str = ""  # The nonce of the invite to this name that is in force; empty: there is none.
    pending: Sequence[Pending] = ()
    names: Sequence[str] = ()  # Of all nodes and invites.


@dataclass(frozen=True, slots=True)
class Admit:
    """Write this node. Those to `forget` waited for approval and fell silent long ago; they make room."""

    node: Node
    forget: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Supersede:
    """Remove the former node and write this one, which has the same name and another id."""

    former: Node
    node: Node
    revoke: tuple[str, ...] = ()  # Bus keys of the former.


@dataclass(frozen=True, slots=True)
class Hold:
    """The claim waits for a person, noted at the node whose name it wants. `new`: it was not there before."""

    holder: Node
    claim: Claim
    new: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """`contested` is the living holder of the name, at the first refusal in its present boot."""

    error: RemudaError
    contested: Node | None = None


Decision = Admit | Supersede | Hold | Refuse


def receive(candidate: Candidate, desk: Desk, new_id: NodeId, policy: AdmissionPolicy) -> Decision:
    if candidate.invite is not None and candidate.invite.nonce != desk.invite:
        hint = f"make a new one with: {_invite_line(candidate.name)}"
        return Refuse(Unauthorized("this invite is no longer valid", hint=hint))
    if not (candidate.secret_hash or candidate.invite or policy.address_only):
        return Refuse(
            Forbidden(
                "this frontend does not accept nodes that are identified by address only",
                hint=f"start it with the token that is printed by: {_invite_line(candidate.name)}",
            )
        )
    if desk.known is None:
        return _new_name(candidate, desk, new_id, policy)
    if recognised(candidate, desk.known) or _own_worker(candidate, desk.known, policy):
        return Admit(admission.readmit(candidate, desk.known, desk.now, policy))
    return _taken_name(candidate, desk.known, desk, new_id)


def new_name_problem(name: str, names: Iterable[str]) -> RemudaError | None:
    """Why no new node or invite may have this name: people could not tell it from another. `names` are those
    of all nodes and invites. Nodes that are already stored under such a name keep it."""
    if name != name.strip():
        return Invalid("name: must not begin or end with white space")
    folded = name.casefold()
    alike = next((other for other in names if other != name and other.casefold() == folded), None)
    if alike is None:
        return None
    return Conflict(
        f"the name {name!r} differs from {alike!r} only in upper and lower case",
        hint="give this machine another name with --name (with LOCALAI_NODE_NAME, a worker of LocalAI)",
    )


def _new_name(candidate: Candidate, desk: Desk, new_id: NodeId, policy: AdmissionPolicy) -> Decision:
    if (problem := new_name_problem(candidate.name, desk.names)) is not None:
        return Refuse(problem)
    if desk.invite and candidate.invite is None:
        return Refuse(
            Conflict(
                f"the name {candidate.name!r} is reserved for a node that was invited",
                hint="give this machine another name with --name, or use the invite's token",
            )
        )
    node = admission.admit(candidate, desk.now, new_id, policy)
    if not node.approved:
        return _with_room(node, desk)
    if len(desk.names) >= limits.NODES_MAX and candidate.invite is None:
        return Refuse(
            Unavailable(
                f"there are {len(desk.names)} nodes and invites, and at most {limits.NODES_MAX} are accepted",
                hint="remove those that are gone: remuda nodes remove NAME",
            )
        )
    return Admit(node)


def _with_room(node: Node, desk: Desk) -> Decision:
    """Every holder of the token can make nodes that wait, so there is a bound, and one for each address."""
    near = [one for one in desk.pending if one.source == node.source]
    too_many_near = max(len(near) - limits.PENDING_PER_SOURCE_MAX + 1, 0)
    too_many = max(len(desk.pending) - limits.PENDING_NODES_MAX + 1, 0)
    forget = _longest_silent(near, desk.now)[:too_many_near]
    room_near = len(forget) == too_many_near
    others = [one for one in desk.pending if one.id not in forget]
    forget += _longest_silent(others, desk.now)[: max(too_many - len(forget), 0)]
    if room_near and len(forget) >= too_many:
        return Admit(node, tuple(forget))
    return Refuse(
        Unavailable(
            f"too many nodes wait for approval: {len(desk.pending)}, of which {len(near)} come from "
            f"{node.source or 'an unknown address'}",
            hint="approve or remove some of them (remuda nodes), or name the proxy that they come through "
            "with --trusted-proxies",
        )
    )


def _longest_silent(pending: Sequence[Pending], now: datetime) -> list[NodeId]:
    silent = [one for one in pending if now - one.last_heard >= _PENDING_KEPT]
    return [one.id for one in sorted(silent, key=lambda one: (one.last_heard, one.id))]


def _taken_name(candidate: Candidate, known: Node, desk: Desk, new_id: NodeId) -> Decision:
    lives = desk.heard in (Reachability.UP, Reachability.SILENT)
    if known.secret_hash:
        return _refused(candidate, known, lives=lives)
    if candidate.invite is not None:
        return Supersede(known, admission.succeed(candidate, known, desk.now, new_id, approved=True))
    if lives:
        return _refused(candidate, known, lives=True)
    if not known.approved:
        return Supersede(known, admission.succeed(candidate, known, desk.now, new_id, approved=False))
    return _claimed(candidate, known, desk.now, new_id)


def _refused(candidate: Candidate, known: Node, *, lives: bool) -> Refuse:
    setting = "--name" if candidate.version else "LOCALAI_NODE_NAME"
    error = Conflict(
        f"the name {candidate.name!r} belongs to another machine",
        hint=f"give this one another name with {setting}; if it replaces that machine, "
        f"free the name first with: remuda nodes remove {pasted(candidate.name)}",
    )
    if not lives or known.contested_from:
        return Refuse(error)
    return Refuse(error, replace(known, contested_from=candidate.source or "an unknown address"))


def _claimed(candidate: Candidate, known: Node, now: datetime, new_id: NodeId) -> Decision:
    former = known.claim
    if former is not None and same_claimant(candidate, former.registration):
        claim = replace(former, registration=candidate, last_heard=now)
        return Hold(replace(known, claim=claim), claim, new=False)
    if former is not None and now - former.last_heard < _CLAIM_LIVES:
        return _refused(candidate, known, lives=False)
    claim = Claim(new_id, candidate, now, now)
    return Hold(replace(known, claim=claim), claim, new=True)


def succeeded(holder: Node, claim_id: NodeId, reachability: Reachability, now: datetime) -> Supersede:
    """A person approves the claim. Conflict where there is none any more to approve."""
    claim = holder.claim
    if claim is None or claim.id != claim_id:
        raise Conflict(f"no machine is waiting to take over the name {holder.name!r} any more")
    if reachability in (Reachability.UP, Reachability.SILENT):
        raise Conflict(
            f"node {holder.name} is running again, so its name cannot be reassigned",
            hint=f"to reassign it anyway: remuda nodes remove {holder.name}",
        )
    node = admission.succeed(claim.registration, holder, now, claim.id, approved=True)
    return Supersede(holder, replace(node, last_heartbeat=min(claim.last_heard, now)))


def _own_worker(candidate: Candidate, known: Node, policy: AdmissionPolicy) -> bool:
    """A row of the worker inside `remuda up` that no secret was bound to yet, whatever it advertises."""
    same_machine = not known.secret_hash and candidate.machine_id == known.machine_id
    return same_machine and admission.is_own(candidate, policy)


def _invite_line(name: str) -> str:
    return f"remuda nodes invite {name}"
