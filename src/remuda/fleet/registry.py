"""Who is in the fleet. Reads, calls a decision, writes; hands out and takes back bus credentials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from remuda.core.entropy import Entropy
from remuda.core.errors import BusUnusable
from remuda.core.ids import BootId, NodeId
from remuda.fleet import admission
from remuda.fleet.admission import AdmissionPolicy, Beat, Candidate
from remuda.fleet.fleet import Fleet, Standing
from remuda.fleet.health import Thresholds
from remuda.fleet.intake import HeartbeatIntake
from remuda.fleet.model import BusTrouble, HistoryEntry, Node
from remuda.fleet.ports import BusCredentials, CredentialIssuer, FleetStore, Note, StopSender

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Admitted:
    node: Node
    credentials: BusCredentials | None  # None while it waits for approval, or where the bus needs none.


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
    ) -> None:
        self._store = store
        self._intake = intake
        self._issuer = issuer
        self._stopper = stopper
        self._policy = policy
        self._thresholds = thresholds
        self._entropy = entropy

    async def register(self, candidate: Candidate) -> Admitted:
        new_id = NodeId(self._entropy.uuid())

        def decide(known: Node | None, fleet: Fleet) -> Node:
            if known is None:
                return admission.admit(candidate, fleet.now, new_id, self._policy)
            heard = fleet.standing(known, self._thresholds).reachability
            return admission.readmit(candidate, known, heard, fleet.now, self._policy)

        node = await self._store.register(candidate.name, decide)
        log.info("node_registered", node=node.name, id=node.id, boot=node.boot_id, approved=node.approved)
        return self._admitted(node, node.updated_at)

    async def heartbeat(self, beat: Beat) -> None:
        await self._intake.take(beat)

    async def cut_off(self, node_id: NodeId, trouble: BusTrouble) -> None:
        """The worker says that commands cannot reach it."""
        node = await self._store.amend(node_id, lambda node: admission.cut_off(node, trouble))
        log.info("node_cut_off", node=node.name, id=node_id, reason=node.cut_off)

    async def approve(self, node_id: NodeId, actor: str) -> Admitted:
        node = await self._store.amend(node_id, admission.approve, Note("approved", actor=actor))
        log.info("node_approved", node=node.name, id=node_id, actor=actor)
        return self._admitted(node, node.updated_at)

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

    async def leave(self, node_id: NodeId, boot_id: BootId | None = None) -> None:
        """The worker's own drain: it goes on until its next registration."""
        await self._store.amend(node_id, lambda node: admission.leave(node, boot_id), Note("leaving"))

    async def stay(self, node_id: NodeId) -> None:
        """The worker takes its own drain back; an admin's drain is not its to lift."""
        await self._store.amend(node_id, lambda node: replace(node, leaving=False), Note("stayed"))

    async def depart(self, node_id: NodeId, boot_id: BootId | None = None) -> None:
        await self._store.amend(node_id, lambda node: admission.depart(node, boot_id), Note("departed"))

    async def remove(self, node_id: NodeId, actor: str) -> Node:
        """Stop the worker, forget the node, and shut its bus credentials out; its history stays."""
        await self._store.one(node_id)  # NotFound before anything is sent.
        try:
            await self._stopper.stop(node_id)
        except BusUnusable as error:
            log.warning("stop_not_sent", node=node_id, reason=error.message)
        key = self._issuer.public_key(node_id)
        node = await self._store.remove(node_id, Note("removed", actor=actor), [] if key is None else [key])
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

    def _admitted(self, node: Node, now: datetime) -> Admitted:
        credentials = self._issuer.mint(node.node_type, node.id, now) if node.approved else None
        return Admitted(node, credentials)
