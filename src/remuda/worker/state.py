"""The worker's state: a phase and a reason. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from remuda.core.ids import NodeId
from remuda.worker.enrolment import EnrolmentStatus


class WorkerPhase(StrEnum):
    REGISTERING = "registering"
    WAITING_FOR_APPROVAL = "waiting for approval"
    CONNECTING = "connecting to the bus"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class WorkerState:
    phase: WorkerPhase
    reason: str = ""
    node_id: NodeId | None = None


def describe(
    standing: EnrolmentStatus, reachable_as: NodeId | None, bus_trouble: str, stopping: str | None
) -> WorkerState:
    """Ready means reachable as the node that the frontend knows now, not as one it knew before."""
    enrolment = standing.enrolment
    node_id = enrolment.node_id if enrolment else None
    if stopping is not None:
        return WorkerState(WorkerPhase.STOPPING, stopping, node_id)
    if enrolment is None:
        return WorkerState(WorkerPhase.REGISTERING, standing.trouble)
    if not enrolment.approved:
        return WorkerState(WorkerPhase.WAITING_FOR_APPROVAL, standing.trouble, node_id)
    if enrolment.credentials_awaited:
        return WorkerState(WorkerPhase.CONNECTING, "the frontend has given no bus credentials yet", node_id)
    if reachable_as != node_id:
        return WorkerState(WorkerPhase.CONNECTING, bus_trouble, node_id)
    return WorkerState(WorkerPhase.READY, standing.trouble, node_id)
