"""A worker's state in one word."""

import pytest

from remuda.core.ids import NodeId
from remuda.worker.enrolment import Enrolment, EnrolmentStatus
from remuda.worker.state import WorkerPhase, WorkerState, describe

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
        (enrolled(trouble="no answer"), NODE, None, WorkerState(WorkerPhase.READY, "no answer", NODE)),
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
