"""Models in the words of the API."""

from typing import Any

import pytest

from remuda.gateway.model_views import model_status
from remuda.wire.serving import BackendState, ReplicaView


def replica(index: int, **told: Any) -> ReplicaView:
    return ReplicaView(**{"model": "m", "index": index, "node": "attic", "memory_bytes": 10, **told})


@pytest.mark.parametrize(
    ("replicas", "state"),
    [
        ([], BackendState.UNINITIALIZED),
        ([replica(0, state="loading")], BackendState.BUSY),
        ([replica(0, state="loaded", in_flight=1)], BackendState.BUSY),
        ([replica(0, state="loaded", in_flight=1), replica(1, state="loaded")], BackendState.READY),
    ],
)
def test_a_model_is_ready_when_one_of_its_replicas_has_nothing_to_do(
    replicas: list[ReplicaView], state: BackendState
) -> None:
    status = model_status(replicas)
    assert status.state is state
    assert status.memory.total == 10 * len(replicas)
    assert set(status.memory.breakdown) == {f"attic#{one.index}" for one in replicas}
