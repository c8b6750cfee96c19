"""Nodes, galleries and wishes with defaults, for tests of who is meant by an operation."""

from dataclasses import replace
from typing import Any

from remuda.core.ids import BootId, NodeId
from remuda.fleet.health import Fleet, ListeningPeriod, ListeningPeriods
from remuda.fleet.model import Label, LabelSource, Resources
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import BackendInventory, ObservedNode
from remuda.gallery.index import read_index
from remuda.gallery.model import Gallery, Reading
from remuda.gallery.sources import REMUDA, shipped_index
from remuda.ops.model import Kind, OpId, RollOut, Source, Step
from remuda.ops.selection import ALL, Selection
from remuda.ops.targets import OperationPlan, PlanningContext, WantedOperation, plan
from remuda.wire.nodes import InstalledArtifact, Report
from tests.support.nodes import NOON, THRESHOLDS
from tests.support.nodes import node as fleet_node
from tests.support.reports import stored

INDEX = b"""
- name: llama-cpp
  alias: llama-cpp
  capabilities: {default: cpu-llama-cpp, nvidia: cuda12-llama-cpp}
- name: cpu-llama-cpp
  alias: llama-cpp
  uri: registry.example/backends:cpu-llama-cpp
- name: cuda12-llama-cpp
  alias: llama-cpp
  uri: registry.example/backends:cuda12-llama-cpp
- name: vllm
  capabilities: {nvidia: cuda12-vllm}
- name: cuda12-vllm
  uri: registry.example/backends:cuda12-vllm
- name: lone
  uri: registry.example/backends:lone
- name: versioned
  uri: registry.example/backends:versioned
  version: "2.0"
- name: arm64-only
  uri: registry.example/backends:arm64-only
"""
MINE = Gallery(name="mine", url="https://example.org/index.yaml")
READINGS = (
    Reading(MINE, read_index(INDEX), confirmed_at=NOON),
    Reading(REMUDA, read_index(shipped_index()), confirmed_at=NOON),
)
NEW, OLD = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def artifact(name: str, digest: str = OLD, version: str = "", **more: str) -> InstalledArtifact:
    return InstalledArtifact.model_validate({"name": name, "digest": digest, "version": version, **more})


def a_node(
    name: str = "gpu-1",
    *has: InstalledArtifact,
    foreign: bool = False,
    told: bool = True,
    labels: dict[str, str] | None = None,
    silent_s: float = 0,
    capability: str = "",
    **facts: Any,
) -> ObservedNode:
    """A node of ours that has told what it has; `foreign` makes it one of LocalAI's."""
    boot = BootId(f"boot-{name}")
    report = stored(Report(boot_id=boot, sequence=1, installed=has))
    node = fleet_node(
        id=NodeId(f"id-{name}"),
        name=name,
        boot_id=boot,
        version="" if foreign else "0.1.0",
        report=None if foreign or not told else report,
        labels={key: Label(value, LabelSource.WORKER) for key, value in (labels or {}).items()},
        resources=Resources(capability=capability),
    )
    node = replace(node, **facts)
    now = NOON.replace(minute=int(silent_s // 60), second=int(silent_s % 60))
    standing = Fleet(now, ListeningPeriods((ListeningPeriod(NOON, now),)), [node]).standing(node, THRESHOLDS)
    listed = [BackendInventory(node.id, boot, NOON, has)] if foreign and told else []
    return ObservedNodes().of([standing], listed)[node.id]


def planned(
    backend: str,
    *nodes: ObservedNode,
    kind: Kind = Kind.INSTALL,
    selection: Selection = ALL,
    rolling: bool = False,
    local_sources: bool = False,
    **source: Any,
) -> OperationPlan:
    roll_out = RollOut(2, canary=True, proves=True) if rolling else RollOut(16)
    wanted = WantedOperation(kind, Source(backend, **source), selection, roll_out)
    return plan(wanted, PlanningContext(nodes, READINGS, local_sources), OpId("op-1"))


def steps(plan: OperationPlan) -> dict[str, Step]:
    return {draft.step.node_name: draft.step for draft in plan.drafts}
