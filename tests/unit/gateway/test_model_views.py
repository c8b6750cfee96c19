"""Models in the words of the API."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from remuda.core.ids import BootId, NodeId, ReplicaKey
from remuda.fleet.health import NodeStatus, Reachability
from remuda.fleet.model import StoredBusTrouble
from remuda.gateway.model_views import (
    counted,
    installed_size,
    model_item,
    model_status,
    nodes_having,
    replica_view,
)
from remuda.gateway.services import Serving
from remuda.models.files import ManifestFile, make_manifest
from remuda.models.reading import read_model
from remuda.ops.model import OpId
from remuda.scheduler.catalogue import Catalogued
from remuda.scheduler.model import ADDED, Replica, ReplicaState, StoredModel
from remuda.scheduler.service import NO_PROBLEM
from remuda.wire.nodes import NodeFacts, NodeView
from remuda.wire.serving import BackendState, ReplicaView
from tests.support.nodes import NOON
from tests.unit.scheduler.standing import a_row, a_view


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


async def _nothing(_: object) -> None:
    return None


SERVING = Serving(  # Only what a view asks for.
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    in_flight=lambda key: 0,
    unloads_at=lambda row: NOON,
    load_status=_nothing,
    routed=None,  # type: ignore[arg-type]
    out_of_reach=dict,
    files=None,  # type: ignore[arg-type]
    room=None,  # type: ignore[arg-type]
    prospects=None,  # type: ignore[arg-type]
    benchmarks=None,  # type: ignore[arg-type]
    servers=None,  # type: ignore[arg-type]
    staging_elsewhere=list,
)


def shown(silent_s: float, **changes: Any) -> ReplicaView:
    """A loaded replica, as it is shown when its node was last heard so long ago."""
    return replica_view(a_row(), [replace(a_view(heard_s=silent_s).standing, **changes)], SERVING)


def test_replica_of_an_earlier_boot_of_its_worker_is_not_shown_as_loaded() -> None:
    restarted = replace(a_view().standing.node, boot_id=BootId("the next one"))
    row = shown(1, node=restarted)
    assert (row.state, row.why) == ("unreachable", "the worker on gpu-1 was restarted")
    view = NodeView(id=restarted.id, remuda=NodeFacts(boot_id=restarted.boot_id))
    assert counted(view, [a_row()], lambda key: 0).model_count == 0


def test_replica_of_a_node_that_is_offline_is_not_shown_as_loaded() -> None:
    assert [shown(silent_s).state for silent_s in (1, 40, 90)] == ["loaded", "loaded", "unreachable"]
    gone = shown(90)
    assert (gone.why, gone.node, gone.unloads_at) == ("gpu-1 is offline", "gpu-1", None)


def test_replica_of_a_worker_that_has_stopped_is_at_once_shown_as_unreachable() -> None:
    stopped = shown(7, stopped="its worker has stopped")
    assert (stopped.state, stopped.unloads_at) == ("unreachable", None)
    assert stopped.why == "the worker on gpu-1 has stopped, the machine is off, or the network to it is down"


def test_replica_of_a_node_that_cannot_be_dialled_is_unreachable_unless_its_worker_is_heard() -> None:
    unreached = {"fe-1": "the connection was refused"}
    assert [shown(heard_s, unreached=unreached).state for heard_s in (3, 12)] == ["loaded", "unreachable"]
    standing = replace(a_view(heard_s=3).standing, unreached=unreached)
    served_by_http = replica_view(replace(a_row(), protocol="http"), [standing], SERVING)
    assert (served_by_http.state, served_by_http.why) == ("unreachable", "gpu-1 cannot be reached")


def test_replica_that_a_request_could_not_reach_is_shown_as_such_before_its_node_is_overdue() -> None:
    missed = replace(SERVING, out_of_reach=lambda: {a_row().node: "a moment ago"})
    row = replica_view(a_row(), [a_view(heard_s=3).standing], missed)
    assert (row.state, row.why) == ("unreachable", "gpu-1 could not be reached a moment ago")


def test_replica_of_a_silent_node_is_shown_with_when_it_was_last_known_to_be_there() -> None:
    assert shown(1).unconfirmed_since is None
    assert shown(40).unconfirmed_since == NOON - timedelta(seconds=40)
    assert shown(90).unconfirmed_since is None, "it is not said to be loaded at all"
    unheard = shown(40, reachability=Reachability.UP)
    assert unheard.unconfirmed_since == NOON - timedelta(seconds=40), "no frontend ran meanwhile"


def test_replica_of_a_node_that_is_cut_off_from_the_bus_stays_and_is_not_confirmed() -> None:
    trouble = StoredBusTrouble(BootId("boot-gpu-1"), 2, "no answer", heard_at=NOON)
    standing = a_view(heard_s=90, bus_trouble=trouble).standing
    assert (standing.status, standing.heard_ago) == (NodeStatus.UNHEALTHY, timedelta())
    assert standing.reasons == ("its worker is not connected to the bus: no answer",)
    row = replica_view(a_row(), [standing], SERVING)
    assert (row.state, row.unconfirmed_since) == ("loaded", NOON - timedelta(seconds=90))


def test_model_whose_only_replica_is_unreachable_is_not_busy() -> None:
    assert model_status([shown(90)]).state is BackendState.UNINITIALIZED


def configured(file: str, *manifest: str) -> Catalogued:
    config = read_model(f"name: m\nbackend: vllm\nparameters: {{model: {file}}}\n")
    files = tuple(ManifestFile(path=path, size=1, sha256="0" * 64) for path in manifest)
    stored = StoredModel("m", "", "r", ADDED, manifest=make_manifest(files) if files else None)
    return Catalogued(stored, config)


@pytest.mark.parametrize(
    ("model", "having"),
    [
        (configured("q.gguf"), ("attic",)),
        (configured("bert"), ("attic", "cellar")),
        (configured("bert/"), ("attic", "cellar")),
        (configured("bert", "bert/config.json", "bert/model.safetensors"), ("cellar",)),
        (configured("q.gguf", "q.gguf", "eyes.gguf"), ()),
        (configured("nowhere"), ()),
    ],
)
def test_nodes_have_a_model_when_they_have_its_file_or_folder_or_all_that_was_installed(
    model: Catalogued, having: tuple[str, ...]
) -> None:
    where = {
        "q.gguf": ["attic"],
        "eyes.gguf": ["cellar"],
        "bert/config.json": ["attic", "cellar"],
        "bert/model.safetensors": ["cellar"],
    }
    assert nodes_having(model, where) == having


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (configured("q.gguf", "q.gguf", "eyes.gguf"), 1),
        (configured("q.gguf"), 0),
        (configured("q-00001-of-00002.gguf", "q-00001-of-00002.gguf", "q-00002-of-00002.gguf"), 0),
        (configured("bert", "bert/config.json", "bert/model.safetensors"), 0),
    ],
)
def test_the_size_of_an_installed_model_is_known_where_its_file_is_not(model: Catalogued, size: int) -> None:
    assert installed_size(model) == size
    assert model_item(model, (), {}, NO_PROBLEM).size_bytes == size
