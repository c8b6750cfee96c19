"""Conversions between wire messages and the fleet's types."""

from collections.abc import Mapping
from hashlib import sha256

import structlog

from remuda.core import limits
from remuda.core.bus_reach import UnreachedBus, seen_from_frontend
from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid
from remuda.core.ids import BootId, MachineId, NodeId
from remuda.fleet.admission import Beat
from remuda.fleet.health import Standing
from remuda.fleet.identity import CallerIdentity, hash_of
from remuda.fleet.model import (
    BusTroubleKind,
    Candidate,
    Claim,
    Invite,
    Node,
    NodeType,
    Resources,
    StoredBusTrouble,
    StoredReport,
    node_vram_ceiling,
    usable_vram,
)
from remuda.wire.codec import encode
from remuda.wire.node_facts import NodeClaim
from remuda.wire.nodes import BusTrouble as WorkerBusTrouble
from remuda.wire.nodes import (
    Heartbeat,
    NodeFacts,
    NodeView,
    RegisterRequest,
    label_problem,
    problems,
    storable_labels,
    text_problem,
)
from remuda.wire.nodes import Report as WorkerReport

log = structlog.get_logger()
_BYTES = ("total_vram", "available_vram", "total_ram", "available_ram", "total_disk", "available_disk")


def candidate(
    request: RegisterRequest,
    entropy: Entropy,
    sent: bytes = b"",
    source: str = "",
    invite: Invite | None = None,
) -> Candidate:
    """The registration in our words; Invalid says everything that is wrong with it. `sent` is its body."""
    wrong = problems(request)
    if wrong:
        raise Invalid("; ".join(wrong))
    _check_byte_counts(request)
    kept, skipped = storable_labels(dict(request.labels))
    for reason in skipped:
        log.warning("label_skipped", node=request.name, reason=reason)
    identity = request.remuda
    return Candidate(
        name=request.name,
        node_type=NodeType(request.node_type or NodeType.BACKEND),
        address=request.address,
        http_address=request.http_address,
        machine_id=MachineId(request.machine_id),
        boot_id=BootId((identity.boot_id if identity else "") or entropy.uuid()),
        version=identity.version if identity else "",
        resources=Resources(
            total_vram=request.total_vram,
            available_vram=request.available_vram,
            total_ram=request.total_ram or 0,
            available_ram=request.available_ram or 0,
            total_disk=request.total_disk or 0,
            available_disk=request.available_disk or 0,
            gpu_vendor=request.gpu_vendor,
            gpu_compute_capability=request.gpu_compute_capability,
            capability=request.capability,
        ),
        vram_budget=request.vram_budget,
        max_replicas=request.max_replicas_per_model,
        labels=kept,
        body_hash=sha256(sent).hexdigest() if sent else "",
        source=source,
        secret_hash=hash_of(request.node_secret.encode()) if request.node_secret else "",
        invite=invite,
    )


def beat(node_id: NodeId, caller: CallerIdentity, message: Heartbeat) -> Beat:
    """The heartbeat in our words; Invalid when there is something in it that cannot be kept."""
    if problem := text_problem("gpu_vendor", message.gpu_vendor):
        raise Invalid(problem)
    _check_byte_counts(message)
    return Beat(
        node_id,
        caller,
        available_vram=message.available_vram,
        total_vram=message.total_vram,
        available_ram=message.available_ram,
        available_disk=message.available_disk,
        total_disk=message.total_disk,
        gpu_vendor=message.gpu_vendor or None,
        report=_report(message.report),
    )


def bus_trouble(message: WorkerBusTrouble, bus_url: str, host: str) -> StoredBusTrouble:
    """The worker's word in the fleet's own; Invalid when it does not say of which boot, or why. `bus_url` is
    the address that a worker gets which reaches us as `host`."""
    if not message.boot_id or not message.reason:
        raise Invalid("boot_id and reason are required")
    if problem := text_problem("boot_id", message.boot_id):
        raise Invalid(problem)
    where = message.unreached
    unreached = None if where is None else UnreachedBus(_shown(where.address), _shown(where.why))
    seen = seen_from_frontend(_shown(message.reason), unreached, bus_url, host)
    kind = BusTroubleKind.OTHER if unreached is None else BusTroubleKind.CANNOT_CONNECT
    return StoredBusTrouble(BootId(message.boot_id), message.sequence, seen, kind=kind)


def _shown(text: str) -> str:
    cut = text[: limits.BUS_TROUBLE_CHARS_MAX]
    return "".join(char if char.isprintable() else " " for char in cut)


def _report(report: WorkerReport | None) -> StoredReport | None:
    """Its number is kept apart, so that two reports that tell the same have the same body."""
    if report is None:
        return None
    body = encode(report.model_copy(update={"sequence": 0})).decode()
    return StoredReport(BootId(report.boot_id), report.sequence, body)


def node_view(standing: Standing, report: WorkerReport | None = None) -> NodeView:
    """`report`: of its worker's present life, where there is one."""
    node, resources = standing.node, standing.node.resources
    return NodeView(
        id=node.id,
        name=node.name,
        node_type=node.node_type,
        address=node.address,
        http_address=node.http_address,
        status=standing.status,
        total_vram=resources.total_vram,
        available_vram=usable_vram(node),
        total_ram=resources.total_ram,
        available_ram=resources.available_ram,
        total_disk=resources.total_disk,
        available_disk=resources.available_disk,
        gpu_vendor=resources.gpu_vendor,
        gpu_compute_capability=resources.gpu_compute_capability,
        capability=resources.capability,
        vram_budget=node.effective_budget,
        vram_budget_bytes=node_vram_ceiling(node) or 0,
        max_replicas_per_model=node.effective_max_replicas,
        max_replicas_per_model_manually_set=node.max_replicas_override is not None,
        vram_budget_manually_set=node.vram_budget_override is not None,
        last_heartbeat=node.last_heard,
        created_at=node.created_at,
        updated_at=node.updated_at,
        labels=labels_view(node),
        remuda=NodeFacts(
            reachability=standing.reachability.value,
            approved=node.approved,
            drained=node.drained,
            leaving=node.leaving,
            version=node.version,
            boot_id=node.boot_id,
            identified_by=node.identified_by,
            source=node.source,
            contested_from=node.contested_from,
            claim=None if node.claim is None else _claim_view(node.claim),
            unreachable=bool(standing.unreached),
            heard_seconds_ago=max(0, int(standing.heard_ago.total_seconds())),
            left=node.departed and node.left,
            joining=standing.joining,
            gpus=() if report is None else report.gpus,
            reasons=standing.reasons,
        ),
    )


def _claim_view(claim: Claim) -> NodeClaim:
    wanted = claim.registration
    return NodeClaim(
        id=claim.id,
        source=wanted.source,
        address=wanted.address,
        http_address=wanted.http_address,
        version=wanted.version,
        since=claim.since,
        last_heard=claim.last_heard,
    )


def labels_view(node: Node) -> dict[str, str]:
    return {key: label.value for key, label in sorted(node.labels.items())}


def check_labels(labels: Mapping[str, str]) -> None:
    wrong = [problem for key, value in labels.items() if (problem := label_problem(key, value))]
    if wrong:
        raise Invalid("; ".join(wrong[:3]))


def _check_byte_counts(message: RegisterRequest | Heartbeat) -> None:
    for field in _BYTES:
        value = getattr(message, field, None) or 0
        if value > limits.BYTES_REPORTED_MAX:
            raise Invalid(f"{field}: {value} bytes is more than any machine has")
