"""A worker's state in one word."""

import pytest

from remuda.core.ids import NodeId
from remuda.worker.enrolment import Enrolment, Standing
from remuda.worker.state import Phase, WorkerState, describe

NODE = NodeId("n1")


def enrolled(*, approved: bool = True, awaited: bool = False, trouble: str = "") -> Standing:
    return Standing(Enrolment(NODE, approved, "nats://bus", None, awaited), trouble)


@pytest.mark.parametrize(
    ("standing", "reachable_as", "stopping", "state"),
    [
        (Standing(trouble="no route"), None, None, WorkerState(Phase.REGISTERING, "no route")),
        (enrolled(approved=False), None, None, WorkerState(Phase.WAITING_FOR_APPROVAL, "", NODE)),
        (enrolled(approved=False), NODE, None, WorkerState(Phase.WAITING_FOR_APPROVAL, "", NODE)),
        (enrolled(), None, None, WorkerState(Phase.CONNECTING, "refused", NODE)),
        (enrolled(), NodeId("before"), None, WorkerState(Phase.CONNECTING, "refused", NODE)),
        (enrolled(), NODE, None, WorkerState(Phase.READY, "", NODE)),
        (enrolled(trouble="no answer"), NODE, None, WorkerState(Phase.READY, "no answer", NODE)),
        (enrolled(), NODE, "SIGTERM", WorkerState(Phase.STOPPING, "SIGTERM", NODE)),
        (Standing(), None, "SIGTERM", WorkerState(Phase.STOPPING, "SIGTERM", None)),
    ],
)
def test_the_state_follows_from_the_facts(
    standing: Standing, reachable_as: NodeId | None, stopping: str | None, state: WorkerState
) -> None:
    assert describe(standing, reachable_as, "refused", stopping) == state


def test_missing_bus_credentials_are_named() -> None:
    state = describe(enrolled(awaited=True), None, "", None)
    assert (state.phase, state.reason) == (
        Phase.CONNECTING,
        "the frontend has given no bus credentials yet",
    )
