"""The nodes of the fleet: reads, calls a decision, writes; checks that a call in a node's name comes from
that node; hands out and takes back bus credentials."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import anyio
import structlog

from remuda.core import limits
from remuda.core.entropy import Entropy
from remuda.core.errors import BusUnusable, NodeRemoved, NotFound, RemudaError, Unavailable
from remuda.core.ids import BootId, NodeId
from remuda.fleet import admission
from remuda.fleet.admission import AdmissionPolicy, Beat
from remuda.fleet.health import Fleet, Standing, Thresholds
from remuda.fleet.heartbeats import HeartbeatIntake
from remuda.fleet.identity import CallerIdentity, DerivedTokens, NodeTokens, proven
from remuda.fleet.model import Candidate, HistoryEntry, Identification, Node, StoredBusTrouble
from remuda.fleet.node_views import current_report
from remuda.fleet.ports import BusCredentials, CredentialIssuer, FleetStore, KnownName, Note, StopSender
from remuda.fleet.registration import Admit, Decision, Desk, Hold, Refuse, Supersede, receive, succeeded

LookUp = Callable[[NodeId], Awaitable[Node]]
"""The node of this id; NotFound."""

Heard = Callable[[NodeId, CallerIdentity], bool]
"""Whether a heartbeat of that caller was lately taken as that node's."""


class Callers:
    """Any caller can invent a secret. Such calls are answered by reading, a few at a time,
    so that they neither take the lock for writing nor make those wait who need it."""

    def __init__(self, look_up: LookUp, heard: Heard) -> None:
        self._look_up = look_up
        self._heard = heard
        self._lookups = anyio.CapacityLimiter(limits.CALLERS_LOOKED_UP_MAX)

    async def prove(self, node_id: NodeId, caller: CallerIdentity) -> None:
        """Raises as `identify` does. A write decides again on what is stored by then."""
        if not self._heard(node_id, caller):
            await self._identify_stranger(node_id, caller)

    async def identify(self, node_id: NodeId, caller: CallerIdentity) -> None:
        """NotFound for an unknown node, Unauthorized where the caller is not that node, Unavailable where too
        many others who were not heard before are still being looked up."""
        if self._heard(node_id, caller):
            proven(await self._look_up(node_id), caller)
        else:
            await self._identify_stranger(node_id, caller)

    async def _identify_stranger(self, node_id: NodeId, caller: CallerIdentity) -> None:
        if self._lookups.statistics().tasks_waiting >= limits.CALLERS_WAITING_MAX:
            raise Unavailable("too many unidentified callers are being looked up", hint="send it again")
        async with self._lookups:
            node = await self._look_up(node_id)
        proven(node, caller)


log = structlog.get_logger()
_NO_APPROVALS = AdmissionPolicy(auto_approve=False)


@dataclass(frozen=True, slots=True)
class Admitted:
    node: Node
    credentials: BusCredentials | None  # None while it waits for approval, or where the bus needs none.
    tokens: DerivedTokens | None = None  # Its own; None while it waits, and for one that proved nothing.


class Registry:
    def __init__(
        self,
        store: FleetStore,
        intake: HeartbeatIntake,
        issuer: CredentialIssuer,
        stopper: StopSender,
        policy: AdmissionPolicy,
        thresholds: Thresholds,
        entropy: Entropy,
        tokens: NodeTokens,
    ) -> None:
        self._store = store
        self._intake = intake
        self._issuer = issuer
        self._stopper = stopper
        self._policy = policy
        self._thresholds = thresholds
        self._entropy = entropy
        self._tokens = tokens
        self._callers = Callers(self._one, intake.has_heard)

    async def register(self, candidate: Candidate) -> Admitted:
        """Conflict for a name that is another machine's; Forbidden, Unauthorized or Unavailable for a peer
        that is not let in."""
        new_id = NodeId(self._entropy.uuid())

        def decide(known: KnownName) -> Decision:
            decision = receive(candidate, self._desk(known), new_id, self._policy)
            return self._with_keys(decision) if isinstance(decision, Supersede) else decision

        match await self._store.register(candidate.name, decide):
            case Refuse(error):
                log.info("registration_refused", node=candidate.name, source=candidate.source, why=error.code)
                raise error
            case Hold(_, claim):
                log.info("name_claimed", node=candidate.name, id=claim.id, source=candidate.source)
                return Admitted(admission.admit(candidate, claim.since, claim.id, _NO_APPROVALS), None)
            case Admit(node):
                pass
            case Supersede(former, node):
                await self._shut_out(former)
        log.info("node_registered", node=node.name, id=node.id, boot=node.boot_id, approved=node.approved)
        return self._admitted(node, node.updated_at)

    async def heartbeat(self, beat: Beat) -> None:
        async with self._removal_told(beat.node_id):
            await self._intake.take(beat)

    async def cut_off(self, node_id: NodeId, caller: CallerIdentity, trouble: StoredBusTrouble) -> None:
        """The worker says that commands cannot reach it."""
        async with self._removal_told(node_id):
            await self._callers.prove(node_id, caller)
            node = await self._store.amend(
                node_id, lambda node: admission.cut_off(proven(node, caller), trouble, node.updated_at)
            )
        log.info("node_cut_off", node=node.name, id=node_id, reason=node.cut_off)

    async def approve(self, node_id: NodeId, actor: str) -> Admitted:
        """Let a pending node in, or a machine that claims the name of a node that is gone: the id says which.
        The latter's approval removes the former node."""
        try:
            node = await self._store.amend(node_id, admission.approve, Note("approved", actor=actor))
        except NotFound:
            node = await self._approve_claim(node_id, actor)
        log.info("node_approved", node=node.name, id=node_id, actor=actor)
        return self._admitted(node, node.updated_at)

    async def _approve_claim(self, claim_id: NodeId, actor: str) -> Node:
        def decide(holder: Node, fleet: Fleet) -> Supersede:
            reachability = fleet.standing(holder, self._thresholds).reachability
            return self._with_keys(succeeded(holder, claim_id, reachability, fleet.now))

        done = await self._store.supersede(claim_id, decide, Note("approved", actor=actor))
        await self._shut_out(done.former)
        return done.node

    async def invite(self, name: str, actor: str) -> str:
        """The registration token with which a peer of this name, and of no other, is let in."""
        nonce = await self._store.invite(name, self._entropy.token(12), Note("invited", actor=actor))
        log.info("node_invited", node=name, actor=actor)
        return self._tokens.invite(name, nonce)

    async def withdraw_invite(self, name: str, actor: str) -> None:
        """End the invite's token, and with it the approval and the bus credentials of the node that came
        with it. That node can come back with a new invite, or from its address with the shared token."""
        note = Note("invite_withdrawn", actor=actor)
        node = await self._store.withdraw_invite(name, admission.without_invite, self._keys_of, note)
        if node is not None:
            await self._issuer.revoke(await self._store.revoked())
        log.info("invite_withdrawn", node=name, id=node.id if node else None, actor=actor)

    async def drain(self, node_id: NodeId, actor: str) -> None:
        await self._store.amend(
            node_id, lambda node: replace(node, drained=True), Note("drained", actor=actor)
        )

    async def resume(self, node_id: NodeId, actor: str) -> None:
        await self._store.amend(
            node_id,
            lambda node: replace(node, drained=False, leaving=False),
            Note("resumed", actor=actor),
        )

    async def leave(self, node_id: NodeId, caller: CallerIdentity, boot_id: BootId | None = None) -> None:
        """The worker's own drain: it goes on until its next registration."""
        async with self._removal_told(node_id):
            await self._callers.prove(node_id, caller)
            await self._store.amend(
                node_id, lambda node: admission.leave(proven(node, caller), boot_id), Note("leaving")
            )

    async def stay(self, node_id: NodeId, caller: CallerIdentity) -> None:
        """The worker takes its own drain back; an admin's drain is not its to lift."""
        await self._callers.prove(node_id, caller)
        await self._store.amend(
            node_id, lambda node: replace(proven(node, caller), leaving=False), Note("stayed")
        )

    async def depart(
        self,
        node_id: NodeId,
        caller: CallerIdentity,
        boot_id: BootId | None = None,
        *,
        for_good: bool = False,
    ) -> None:
        async with self._removal_told(node_id):
            await self._callers.prove(node_id, caller)
            await self._store.amend(
                node_id,
                lambda node: admission.depart(proven(node, caller), boot_id, for_good=for_good),
                Note("departed"),
            )

    async def own_worker_starts(self, why: str) -> None:
        """The worker that this process is about to start does not run yet."""
        for node in await self._own_nodes():
            await self._store.amend(node.id, partial(admission.worker_starts, boot_id=node.boot_id, why=why))
            log.info("own_worker_starts", node=node.name, id=node.id)

    async def own_worker_ended(self, why: str) -> None:
        """The worker that this process starts does not run now."""
        for node in await self._own_nodes():
            ended = partial(admission.worker_ended, boot_id=node.boot_id, why=why)
            await self._store.amend(node.id, ended, Note("worker_ended", why))
            log.info("own_worker_ended", node=node.name, id=node.id, reason=why)

    async def _own_nodes(self) -> list[Node]:
        """Recognised by their secrets."""
        own = self._policy.own_secrets
        nodes = (await self._store.fleet()).nodes
        return [node for node in nodes if node.secret_hash and node.secret_hash in own]

    async def identify(self, node_id: NodeId, caller: CallerIdentity) -> None:
        """NotFound for an unknown node, Unauthorized where the caller is not that node."""
        await self._callers.identify(node_id, caller)

    async def is_removed(self, node_id: NodeId) -> bool:
        try:
            await self._store.one(node_id)
        except NotFound:
            return True
        return False

    @asynccontextmanager
    async def _removal_told(self, node_id: NodeId) -> AsyncIterator[None]:
        """NodeRemoved instead of NotFound for a node that was removed, as far as its revoked key tells. Where
        the bus has no keys of ours, that is not known."""
        try:
            yield
        except NotFound as error:
            keys = self._keys_of(node_id)
            if keys and not (await self._store.revoked()).keys().isdisjoint(keys):
                raise NodeRemoved("this node was removed by an administrator") from error
            raise

    async def note_lost(self, node_id: NodeId, replica: str, why: str, instance: str = "") -> None:
        """Note in the node's history that a replica is gone without being unloaded: why, or what its worker
        reports to have stopped this instance for. If that cannot be written now, the log alone has it."""
        detail = f"{replica}: {why}"
        try:
            [node] = (await self._store.one(node_id)).nodes
            report = current_report(node) if instance else None
            stopped = () if report is None else report.stopped
            told = next((one.why for one in stopped if one.instance == instance), why)
            detail = f"{replica}: {told}"
            await self._store.amend(node_id, lambda node: node, Note("replica_lost", detail))
        except RemudaError as error:
            log.warning("lost_replica_not_noted", node=node_id, detail=detail, reason=error.message)

    async def remove(self, node_id: NodeId, actor: str) -> Node:
        """Stop the worker, forget the node, and shut its bus credentials out; its history stays."""
        await self._store.one(node_id)  # NotFound before anything is sent.
        await self._send_stop(node_id)
        node = await self._store.remove(node_id, Note("removed", actor=actor), self._keys_of(node_id))
        await self._issuer.revoke(await self._store.revoked())
        log.info("node_removed", node=node.name, id=node_id, actor=actor)
        return node

    async def set_labels(
        self, node_id: NodeId, labels: Mapping[str, str], actor: str, *, keep_others: bool
    ) -> Node:
        detail = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
        return await self._store.amend(
            node_id,
            lambda node: admission.with_admin_labels(node, labels, keep_others=keep_others),
            Note("labelled", detail, actor),
        )

    async def remove_label(self, node_id: NodeId, key: str, actor: str) -> None:
        await self._store.amend(
            node_id, lambda node: admission.without_label(node, key), Note("unlabelled", key, actor)
        )

    async def set_budget(self, node_id: NodeId, budget: str | None, actor: str) -> Node:
        return await self._store.amend(
            node_id,
            lambda node: admission.with_budget_override(node, budget),
            Note("vram_budget_set", "reset" if budget is None else budget, actor),
        )

    async def set_files_budget(self, node_id: NodeId, budget: str | None, actor: str) -> Node:
        return await self._store.amend(
            node_id,
            lambda node: admission.with_files_budget_override(node, budget),
            Note("model_files_budget_set", "reset" if budget is None else budget, actor),
        )

    async def set_max_replicas(self, node_id: NodeId, count: int | None, actor: str) -> Node:
        return await self._store.amend(
            node_id,
            lambda node: admission.with_max_replicas_override(node, count),
            Note("max_replicas_set", "reset" if count is None else str(count), actor),
        )

    async def standing(self, node_id: NodeId) -> Standing:
        fleet = await self._store.one(node_id)
        return fleet.standing(fleet.nodes[0], self._thresholds)

    async def standings(self) -> list[Standing]:
        return (await self._store.fleet()).standings(self._thresholds)

    async def history(self, node_name: str | None, limit: int) -> Sequence[HistoryEntry]:
        return await self._store.history(node_name, limit)

    async def _one(self, node_id: NodeId) -> Node:
        return (await self._store.one(node_id)).nodes[0]

    def _desk(self, known: KnownName) -> Desk:
        now, node = known.fleet.now, known.node
        if node is None:
            return Desk(now, None, invite=known.invite, pending=known.pending, names=known.names)
        reachability = known.fleet.standing(node, self._thresholds).reachability
        return Desk(now, node, reachability, known.invite)

    def _admitted(self, node: Node, now: datetime) -> Admitted:
        if not node.approved:
            return Admitted(node, None)
        own = node.identified_by is Identification.SECRET
        credentials = self._issuer.mint(node.node_type, node.id, now)
        return Admitted(node, credentials, self._tokens.of(node) if own else None)

    def _keys_of(self, node_id: NodeId) -> tuple[str, ...]:
        key = self._issuer.public_key(node_id)
        return () if key is None else (key,)

    def _with_keys(self, decision: Supersede) -> Supersede:
        return replace(decision, revoke=self._keys_of(decision.former.id))

    async def _shut_out(self, former: Node) -> None:
        """The node is no more: its worker is stopped, and its bus user is revoked."""
        await self._send_stop(former.id)
        await self._issuer.revoke(await self._store.revoked())
        log.info("node_superseded", node=former.name, id=former.id)

    async def _send_stop(self, node_id: NodeId) -> None:
        try:
            await self._stopper.stop(node_id)
        except BusUnusable as error:
            log.warning("stop_not_sent", node=node_id, reason=error.message)
