"""Nodes with reports, and replicas on them, with defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from remuda.core.ids import BootId, NodeId, ReplicaKey
from remuda.fleet.health import Fleet, ListeningPeriod, ListeningPeriods, Standing
from remuda.fleet.model import Dial, Label, LabelSource, Node, Resources
from remuda.fleet.verdicts import BackendInventory, ObservedNode
from remuda.ops.model import OpId
from remuda.scheduler.model import Replica, Replicas, ReplicaState
from remuda.wire.nodes import InstalledArtifact, ModelFile, Report, RunningReplica
from tests.support.nodes import NOON, THRESHOLDS
from tests.support.nodes import node as fleet_node

BUS_CLOSED = ", and its connection to the bus is closed, too"  # A dial whose problem ends so.
GB = 10**9
GPU = Resources(total_vram=24 * GB, available_vram=20 * GB, total_ram=64 * GB, available_ram=60 * GB)


def ago(seconds: float) -> datetime:
    return NOON - timedelta(seconds=seconds)


def a_view(
    name: str = "gpu-1",
    *running: RunningReplica,
    heard_s: float = 1,
    sequence: int = 1,
    reports: bool = True,
    installed: Sequence[str] = (),
    files: Sequence[str] = (),
    labels: dict[str, str] | None = None,
    unreached: Mapping[str, str] = MappingProxyType({}),
    **facts: Any,
) -> ObservedNode:
    """A node with a GPU, last heard so many seconds before noon, which is now; its boot is `boot-NAME`.
    `unreached`: the frontends that cannot dial it, and what became of their dials."""
    boot = BootId(f"boot-{name}")
    artifacts = tuple(InstalledArtifact(name=f"cpu-{backend}", alias=backend) for backend in installed)
    node = fleet_node(
        id=NodeId(f"id-{name}"),
        name=name,
        boot_id=boot,
        version="0.1.0" if reports else "",
        address="10.0.0.5:50051",
        http_address="10.0.0.5:50050",
        resources=GPU,
        labels={key: Label(value, LabelSource.WORKER) for key, value in (labels or {}).items()},
        last_heartbeat=ago(heard_s),
        registered_at=ago(24 * 3600),
    )
    node = replace(node, **facts)
    report = Report(
        boot_id=boot,
        sequence=sequence,
        installed=artifacts,
        replicas=running,
        model_files=tuple(ModelFile(path=path, size=1) for path in files),
    )
    inventory = BackendInventory(node.id, boot, NOON, artifacts)
    return ObservedNode(
        _standing(node, unreached), reports, report if reports else None, None if reports else inventory
    )


def _standing(node: Node, unreached: Mapping[str, str]) -> Standing:
    dials = {
        node.id: [
            Dial(node.id, frontend, problem, NOON, bus_closed=problem.endswith(BUS_CLOSED))
            for frontend, problem in unreached.items()
        ]
    }
    hearing = ListeningPeriods((ListeningPeriod(NOON - timedelta(hours=1), NOON),))
    return Fleet(NOON, hearing, [node], dials).standing(node, THRESHOLDS)


def a_row(
    model: str = "qwen",
    index: int = 0,
    *,
    on: str = "gpu-1",
    gb: float = 5,
    since_s: float = 60,
    state: ReplicaState = ReplicaState.LOADED,
    **facts: Any,
) -> Replica:
    """A replica that has been in its state for so many seconds."""
    row = Replica(
        ReplicaKey(model, index),
        NodeId(f"id-{on}"),
        state,
        OpId(f"load-{model}-{index}"),
        "llama-cpp",
        "abc",
        memory_bytes=int(gb * GB),
        in_vram=True,
        address="10.0.0.5:50052",
        instance=f"i-{model}-{index}",
        boot=BootId(f"boot-{on}"),
        created_at=ago(since_s),
        updated_at=ago(since_s),
        change=7,
    )
    return replace(row, **facts)


def its_process(row: Replica, state: str = "ready", **facts: Any) -> RunningReplica:
    told = RunningReplica(
        model_id=row.key.model,
        replica_index=row.key.index,
        backend=row.backend,
        address=row.address,
        state=state,
        instance=row.instance,
    )
    return told.model_copy(update=facts)


def rows(*replicas: Replica, now: datetime = NOON) -> Replicas:
    return Replicas(now, 9, replicas)
