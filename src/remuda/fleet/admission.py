"""How a registration, a heartbeat or an administrator's command changes a node. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TypedDict

from remuda.core import limits
from remuda.core.errors import Conflict, Invalid, NotFound
from remuda.core.ids import BootId, MachineId, NodeId
from remuda.fleet.identity import CallerIdentity, may_speak
from remuda.fleet.model import (
    RESERVED_PREFIX,
    Candidate,
    Identification,
    Label,
    LabelSource,
    Node,
    Resources,
    StoredBusTrouble,
    StoredReport,
    auto_labels,
    merged_labels,
    model_files_ceiling,
    vram_ceiling,
)


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """`own_secrets`: hashes; the worker inside `remuda up` needs no approval. `own_machines` share our folder
    of models. `address_only`: peers that can prove nothing may register."""

    auto_approve: bool
    own_machines: frozenset[MachineId] = frozenset()
    own_secrets: frozenset[str] = field(default=frozenset(), repr=False)
    address_only: bool = True


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat, in the fleet's own words. None means: not said."""

    node_id: NodeId
    caller: CallerIdentity
    available_vram: int | None = None
    total_vram: int | None = None
    available_ram: int | None = None
    available_disk: int | None = None
    total_disk: int | None = None
    gpu_vendor: str | None = None
    report: StoredReport | None = None


class HeartbeatOutcome(StrEnum):
    """What became of a heartbeat."""

    TAKEN = "taken"
    STRANGE = "strange"  # Its sender has to register: the node is unknown, or started again since.
    UNPROVEN = "unproven"  # It does not come from the node it names.


def admit(candidate: Candidate, now: datetime, new_id: NodeId, policy: AdmissionPolicy) -> Node:
    """A node never seen before."""
    resources = candidate.resources
    return Node(
        id=new_id,
        name=candidate.name,
        node_type=candidate.node_type,
        address=candidate.address,
        http_address=candidate.http_address,
        machine_id=candidate.machine_id,
        boot_id=candidate.boot_id,
        version=candidate.version,
        resources=resources,
        vram_budget=candidate.vram_budget,
        vram_budget_override=None,
        max_replicas=candidate.max_replicas,
        max_replicas_override=None,
        approved=_trusted(candidate, policy) or candidate.invite is not None,
        drained=False,
        leaving=False,
        departed=False,
        last_heartbeat=now,
        created_at=now,
        updated_at=now,
        labels=merged_labels(
            {}, candidate.labels, auto_labels(candidate.name, resources, candidate.max_replicas)
        ),
        registered_at=now,
        registration_hash=candidate.body_hash,
        source=candidate.source,
        **_proof(candidate),
    )


def readmit(candidate: Candidate, known: Node, now: datetime, policy: AdmissionPolicy) -> Node:
    """A node that was recognised registers again: id, approval, drain and an admin's words are kept."""
    if refreshes(candidate, known):
        candidate = replace(candidate, boot_id=known.boot_id)
    # A worker that cannot be commanded registers again to ask where the bus is: it lives, but is not healthy.
    still_cut_off = bool(known.cut_off) and known.boot_id == candidate.boot_id
    trouble = known.bus_trouble
    resources = _merged_resources(candidate, known)
    slots = known.max_replicas_override or candidate.max_replicas
    return replace(
        known,
        node_type=candidate.node_type,
        address=candidate.address or known.address,
        http_address=candidate.http_address or known.http_address,
        machine_id=candidate.machine_id,
        boot_id=candidate.boot_id,
        version=candidate.version,
        resources=resources,
        vram_budget=candidate.vram_budget,
        max_replicas=candidate.max_replicas,
        approved=known.approved or _trusted(candidate, policy) or candidate.invite is not None,
        leaving=False,
        departed=False,
        last_heartbeat=known.last_heartbeat if still_cut_off else now,
        updated_at=now,
        report=known.report if known.boot_id == candidate.boot_id else None,
        bus_trouble=replace(trouble, heard_at=now) if trouble and still_cut_off else trouble,
        labels=merged_labels(known.labels, candidate.labels, auto_labels(known.name, resources, slots)),
        registered_at=now,
        registration_hash=candidate.body_hash,
        source=candidate.source,
        claim=None,
        left=False,
        ended="",
        contested_from=known.contested_from if known.boot_id == candidate.boot_id else "",
        **_proof(candidate, known),
    )


def refreshes(candidate: Candidate, known: Node) -> bool:
    """Whether a peer that tells no boot only renews its credentials: it sends what it sent last. A worker
    that was started again measures its machine anew. Should it come to the same bytes, `models.running` soon
    tells that nothing runs there any more. After a goodbye it can only be a new start."""
    told_no_boot = not candidate.version and not known.version
    same_body = bool(candidate.body_hash) and candidate.body_hash == known.registration_hash
    return told_no_boot and same_body and not known.departed and not known.leaving


def succeed(candidate: Candidate, former: Node, now: datetime, new_id: NodeId, *, approved: bool) -> Node:
    """Another machine takes over a name, as a node of its own: what bus users and tokens derive from is the
    id, and they must not be the former's. What an admin said of the former is copied."""
    node = admit(candidate, now, new_id, AdmissionPolicy(auto_approve=approved))
    copied = replace(
        node,
        vram_budget_override=former.vram_budget_override,
        files_budget_override=former.files_budget_override,
        drained=former.drained,
        labels=merged_labels(
            former.labels,
            candidate.labels,
            auto_labels(candidate.name, candidate.resources, candidate.max_replicas),
        ),
    )
    return with_max_replicas_override(copied, former.max_replicas_override)


def without_invite(node: Node) -> Node:
    """Its invite was withdrawn. The token no longer speaks for the node, and the approval that came with it
    is gone. What remains to recognise it by is its address. The nonce stays until it registers again: until
    then it has not shown that it knows the shared token, so it must not be sent that (NodeTokens.of)."""
    if node.identified_by is not Identification.INVITE:
        return node
    return replace(node, secret_hash="", approved=False)


def hears(beat: Beat, node: Node | None) -> HeartbeatOutcome:
    """Whether the heartbeat is the node's own, and of the boot that registered last, as far as it says.

    Another boot's is late, or its sender was overtaken by a late registration: neither is a sign of life of
    this node, and a sender that lives has to register again.
    """
    if node is None:
        return HeartbeatOutcome.STRANGE
    if not may_speak(beat.caller, node):
        return HeartbeatOutcome.UNPROVEN
    same_boot = beat.report is None or beat.report.boot_id == node.boot_id
    return HeartbeatOutcome.TAKEN if same_boot else HeartbeatOutcome.STRANGE


def leave(node: Node, boot_id: BootId | None) -> Node:
    """The worker's own drain. None: it does not say which of its lives it is. Raises NotFound for a life that
    is over: its word came late, and would drain the next one for good."""
    return replace(_still(node, boot_id), leaving=True)


def depart(node: Node, boot_id: BootId | None, *, for_good: bool = False) -> Node:
    """Goodbye, under the same condition."""
    return replace(_still(node, boot_id), departed=True, left=for_good, ended="")


def worker_ended(node: Node, boot_id: BootId, why: str) -> Node:
    """The process that started the worker of this boot says that it has ended. One that said goodbye has told
    more, and one that registered since is another."""
    over = node.boot_id == boot_id and (not node.departed or bool(node.ended))
    return replace(node, departed=True, ended=why) if over else node


def worker_starts(node: Node, boot_id: BootId, why: str) -> Node:
    """The process that starts its worker has just begun: how the worker of the boot before ended, also if it
    said goodbye, is no longer what to know."""
    return replace(node, departed=True, ended=why) if node.boot_id == boot_id else node


def heard(node: Node, beat: Beat, now: datetime) -> Node:
    """The node after a heartbeat that speaks for it. One that waits for approval gets a time stamp only."""
    source = node.source or (beat.caller.source if node.identified_by is Identification.ADDRESS else "")
    alive = replace(node, last_heartbeat=now, departed=False, left=False, ended="", source=source)
    if not node.approved:
        return alive
    old = node.resources
    resources = replace(
        old,
        available_vram=_said(beat.available_vram, old.available_vram),
        total_vram=_said(beat.total_vram, old.total_vram),
        available_ram=_said(beat.available_ram, old.available_ram),
        available_disk=_said(beat.available_disk, old.available_disk),
        total_disk=_said(beat.total_disk, old.total_disk),
        gpu_vendor=old.gpu_vendor if beat.gpu_vendor is None else beat.gpu_vendor,
    )
    return replace(alive, resources=resources, report=_newer(node.report, beat.report))


def cut_off(node: Node, trouble: StoredBusTrouble, now: datetime) -> Node:
    """The worker says that commands cannot reach it. It was heard, but the time of its last heartbeat stays
    as it is: its last report is as old as before. Raises NotFound for a boot that is over."""
    known = _still(node, trouble.boot_id).bus_trouble
    overtaken = known is not None and known.boot_id == trouble.boot_id and known.sequence >= trouble.sequence
    return node if overtaken else replace(node, bus_trouble=replace(trouble, heard_at=now))


def approve(node: Node) -> Node:
    if node.approved:
        raise Invalid(f"node {node.name} is not pending approval")
    return replace(node, approved=True)


def with_admin_labels(node: Node, labels: Mapping[str, str], *, keep_others: bool) -> Node:
    """An admin's labels, merged into the others or in place of all of them."""
    written = {key: _admin_label(node, key, value) for key, value in labels.items()}
    after = {**node.labels, **written} if keep_others else written
    if sum(label.source is LabelSource.ADMIN for label in after.values()) > limits.NODE_LABELS_MAX:
        raise Invalid(f"labels: a node can have at most {limits.NODE_LABELS_MAX} from admins")
    return replace(node, labels=after)


def _admin_label(node: Node, key: str, value: str) -> Label:
    """Those below `node.` describe the machine: they can be sent back as they are, and not changed."""
    if not key.startswith(RESERVED_PREFIX):
        return Label(value, LabelSource.ADMIN)
    present = node.labels.get(key)
    if present is not None and present.value == value:
        return present
    raise Invalid(
        f"labels: {key} is reserved: labels that begin with {RESERVED_PREFIX} are set by the node",
        hint="use another name",
    )


def without_label(node: Node, key: str) -> Node:
    """Without an admin's label. Conflict for one that the next registration would bring back."""
    label = node.labels.get(key)
    if label is not None and label.source is LabelSource.WORKER:
        setting = node.setting("--labels", "LOCALAI_NODE_LABELS")
        raise Conflict(
            f"{node.name}'s own settings have the label {key}={label.value}",
            hint=f"change {setting} there and restart its worker, or give the label another value here"
            if not key.startswith(RESERVED_PREFIX)
            else "it describes the machine and cannot be removed",
        )
    if label is not None and label.source is LabelSource.AUTO:
        raise Conflict(
            f"the frontend derives the label {key}={label.value} from what {node.name} reports",
            hint="it cannot be removed"
            if key.startswith(RESERVED_PREFIX)
            else "it cannot be removed, but it can be given another value",
        )
    labels = {k: label for k, label in node.labels.items() if k != key}
    derived = auto_labels(node.name, node.resources, node.effective_max_replicas)
    if label is not None and key in derived:  # The admin's value stood in its place.
        labels[key] = Label(derived[key], LabelSource.AUTO)
    return replace(node, labels=labels)


def with_budget_override(node: Node, budget: str | None) -> Node:
    """An admin's budget, empty for *no cap*; None goes back to what the worker was configured with."""
    if budget is not None:
        vram_ceiling(budget, node.resources.total_vram)  # Raises Invalid, naming the accepted forms.
    return replace(node, vram_budget_override=budget)


def with_files_budget_override(node: Node, budget: str | None) -> Node:
    """An admin's budget for model files, in the same words."""
    if budget is not None:
        model_files_ceiling(budget, node.resources.total_disk)
    return replace(node, files_budget_override=budget)


def with_max_replicas_override(node: Node, count: int | None) -> Node:
    changed = replace(node, max_replicas_override=count)
    slots = Label(str(changed.effective_max_replicas), LabelSource.AUTO)
    present = node.labels.get("node.replica-slots")
    if present is not None and present.source is LabelSource.ADMIN:
        return changed
    return replace(changed, labels={**node.labels, "node.replica-slots": slots})


def _trusted(candidate: Candidate, policy: AdmissionPolicy) -> bool:
    return policy.auto_approve or is_own(candidate, policy)


def is_own(candidate: Candidate, policy: AdmissionPolicy) -> bool:
    """Whether it is the worker inside `remuda up`, whose secret we can read."""
    return bool(candidate.secret_hash) and candidate.secret_hash in policy.own_secrets


class _Proof(TypedDict):
    secret_hash: str
    invite: str


def _proof(candidate: Candidate, known: Node | None = None) -> _Proof:
    """What the node will be recognised by: the best that it has ever shown."""
    if candidate.secret_hash:
        return {"secret_hash": candidate.secret_hash, "invite": ""}
    if candidate.invite is not None:
        return {"secret_hash": candidate.invite.token_hash, "invite": candidate.invite.nonce}
    if known is None or not known.secret_hash:  # Also where its invite was withdrawn.
        return {"secret_hash": "", "invite": ""}
    return {"secret_hash": known.secret_hash, "invite": known.invite}


def _merged_resources(candidate: Candidate, known: Node) -> Resources:
    """Our workers mean it when they say zero; for others zero or empty is *not said*, except for the disk."""
    new, old = candidate.resources, known.resources
    if candidate.version:
        return new
    keep_free = new.available_vram == 0 and known.vram_budget_override is not None
    return Resources(
        total_vram=new.total_vram or old.total_vram,
        available_vram=old.available_vram if keep_free else new.available_vram,
        total_ram=new.total_ram or old.total_ram,
        available_ram=new.available_ram or old.available_ram,
        total_disk=new.total_disk,
        available_disk=new.available_disk,
        gpu_vendor=new.gpu_vendor or old.gpu_vendor,
        gpu_compute_capability=new.gpu_compute_capability or old.gpu_compute_capability,
        capability=new.capability or old.capability,
    )


def _still(node: Node, boot_id: BootId | None) -> Node:
    if boot_id and boot_id != node.boot_id:
        raise NotFound(f"node {node.name} has been restarted since")
    return node


def _said(new: int | None, old: int) -> int:
    return old if new is None else new


def _newer(held: StoredReport | None, report: StoredReport | None) -> StoredReport | None:
    """A report that was overtaken on the way changes nothing."""
    if held is None or report is None:
        return report or held
    return report if report.sequence > held.sequence else held
