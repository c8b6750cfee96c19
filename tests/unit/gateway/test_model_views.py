"""Models in the words of the API."""

from typing import Any

import pytest

from remuda.core.ids import NodeId
from remuda.gateway.model_views import counted, model_status
from remuda.ops.model import OpId
from remuda.scheduler.model import Replica, ReplicaKey, ReplicaState
from remuda.wire.nodes import NodeView
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


def row(index: int, state: ReplicaState, *, in_vram: bool = True) -> Replica:
    key = ReplicaKey("m", index)
    return Replica(key, NodeId("n"), state, OpId("op"), "b", "r", memory_bytes=10, in_vram=in_vram)


def test_memory_for_what_is_on_its_way_is_shown_as_reserved() -> None:
    rows = [
        row(0, ReplicaState.LOADED),
        row(1, ReplicaState.LOADING),
        row(2, ReplicaState.STAGING),
        row(3, ReplicaState.LOADING, in_vram=False),
    ]
    view = counted(NodeView(id="n"), rows, lambda key: key.index)
    assert (view.model_count, view.in_flight_count, view.reserved_vram) == (1, 6, 20)
    assert counted(NodeView(id="other"), rows, lambda key: key.index).reserved_vram == 0
