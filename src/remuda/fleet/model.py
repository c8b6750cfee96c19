"""What a node is, its labels (which the frontend writes by itself, how a registration merges them, how
selectors match) and its VRAM budget. Pure.

Three facts about a node are kept apart and never folded into one column: whether an admin let it in,
whether someone asked it to stop taking work, and when it was last heard. The total VRAM a node reports
stays raw; the budget only caps what may be used of it.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from remuda.core.errors import Invalid
from remuda.core.ids import BootId, MachineId, NodeId


class NodeType(StrEnum):
    BACKEND = "backend"
    AGENT = "agent"


class LabelSource(StrEnum):
    """Who wrote a label. An admin's outlives registrations; the others are rewritten by each of them."""

    WORKER = "worker"
    AUTO = "auto"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Label:
    value: str
    source: LabelSource


@dataclass(frozen=True, slots=True)
class Resources:
    """Byte counts and hardware words as the worker reported them, before any budget is applied."""

    total_vram: int = 0
    available_vram: int = 0
    total_ram: int = 0
    available_ram: int = 0
    total_disk: int = 0  # 0: unknown, so nothing may be concluded from it.
    available_disk: int = 0  # 0 with a known total: full.
    gpu_vendor: str = ""
    gpu_compute_capability: str = ""
    capability: str = ""


@dataclass(frozen=True, slots=True)
class Invite:
    """The invite with which a registration came. Its token was checked; whether it is still in force is for
    the store to say."""

    nonce: str
    token_hash: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A registration, in the fleet's own words."""

    name: str
    node_type: NodeType
    address: str
    http_address: str
    machine_id: MachineId
    boot_id: BootId  # Never empty: for a peer that sends none, the caller begins a new boot.
    version: str  # Empty for a peer that is not ours.
    resources: Resources
    vram_budget: str = ""
    max_replicas: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    body_hash: str = ""  # Of the registration as it was sent, byte for byte.
    source: str = ""  # The IP address it came from.
    secret_hash: str = field(default="", repr=False)  # Of our worker's secret; empty: it has none.
    invite: Invite | None = None  # None: it came with the shared token.


@dataclass(frozen=True, slots=True)
class Claim:
    """A machine that registers under the name of a node that is gone, and that is not recognised as that
    node. It waits for a person; approved, it becomes a node with this id."""

    id: NodeId
    registration: Candidate
    since: datetime
    last_heard: datetime


class Identification(StrEnum):
    """By what a node is recognised."""

    SECRET = "secret"  # Of our worker, kept in its data folder.
    INVITE = "invite"  # A registration token that is valid for this node's name only.
    ADDRESS = "address"  # The shared token, from the address and with the advertised hosts it had before.


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A worker's latest account of itself. `body` is its JSON; the fence is (boot, sequence)."""

    boot_id: BootId
    sequence: int
    body: str


class BusTroubleKind(StrEnum):
    OTHER = ""  # Its words say all that is known; so do those of older workers.
    CANNOT_CONNECT = "cannot_connect"  # Its words begin with what the worker cannot do, not with why.

    @classmethod
    def stored(cls, code: str) -> "BusTroubleKind":
        """A newer release on the same database may know more kinds."""
        return next((kind for kind in cls if kind.value == code), cls.OTHER)


@dataclass(frozen=True, slots=True)
class StoredBusTrouble:
    """A worker's own word that commands cannot reach it. It shares the numbering of its reports."""

    boot_id: BootId
    sequence: int
    reason: str
    heard_at: datetime | None = None  # When its worker last called, cut off; None: it was not noted.
    kind: BusTroubleKind = BusTroubleKind.OTHER


@dataclass(frozen=True, slots=True)
class Node:
    id: NodeId
    name: str
    node_type: NodeType
    address: str
    http_address: str
    machine_id: MachineId  # Empty for a peer that sends none.
    boot_id: BootId
    version: str  # Of our worker; empty for a LocalAI one.
    resources: Resources
    vram_budget: str  # As the worker was configured; the override, where set, is an admin's.
    vram_budget_override: str | None
    max_replicas: int
    max_replicas_override: int | None
    approved: bool
    drained: bool  # By an admin: durable until resumed.
    leaving: bool  # The worker's own drain, part of its orderly stop: ended by its next registration.
    departed: bool  # It said goodbye and has not been heard since.
    last_heartbeat: datetime
    created_at: datetime
    updated_at: datetime
    labels: Mapping[str, Label] = field(default_factory=dict)
    report: StoredReport | None = None
    registered_at: datetime | None = None  # Its last registration; None: before this was noted.
    registration_hash: str = ""  # Of the body it registered with; empty: it was not noted.
    bus_trouble: StoredBusTrouble | None = None  # The latest; see `cut_off` for whether it still holds.
    source: str = ""  # Where its last registration came from; empty in rows of releases that did not note it.
    secret_hash: str = field(default="", repr=False)  # Of what its worker proves itself with; empty: nothing.
    invite: str = ""  # The nonce of the invite it came with last; without a secret hash it was withdrawn.
    claim: Claim | None = None
    left: bool = False  # Of a departed node: it left the fleet, and is not waited for.
    contested_from: str = ""  # Who was refused under this name while the node lived; empty: none.
    ended: str = ""  # Why its worker does not run, as the `remuda up` says that starts it; else empty.
    files_budget_override: str | None = None  # An admin's, for model files; None: its worker's own counts.

    @property
    def last_heard(self) -> datetime:
        """Its last heartbeat, or its worker's last call while it cannot be commanded: that is no sign of
        health and tells nothing new of what runs there, but shows that the worker is alive."""
        trouble = self.bus_trouble
        if trouble is None or trouble.heard_at is None or trouble.boot_id != self.boot_id:
            return self.last_heartbeat
        return max(self.last_heartbeat, trouble.heard_at)

    @property
    def cut_off(self) -> str:
        """Why commands cannot reach its worker, in the worker's words; empty when they can.

        Reports come only while they can, so a later one ends it. No clock is compared, and an older frontend
        on the same database ends it too by storing a report.
        """
        trouble = self.bus_trouble
        if trouble is None or trouble.boot_id != self.boot_id:
            return ""
        report = self.report
        reported_since = (
            report is not None and report.boot_id == trouble.boot_id and report.sequence > trouble.sequence
        )
        return "" if reported_since else trouble.reason

    def setting(self, flag: str, variable: str) -> str:
        """A setting as this node's worker knows it: ours by `flag`, LocalAI's by `variable`."""
        return flag if self.version else variable

    @property
    def connecting(self) -> bool:
        """Whether our worker has yet to subscribe to its commands: its first report comes after that."""
        return bool(self.version) and (self.report is None or self.report.boot_id != self.boot_id)

    @property
    def identified_by(self) -> Identification:
        if not self.secret_hash:
            return Identification.ADDRESS
        return Identification.INVITE if self.invite else Identification.SECRET

    @property
    def effective_budget(self) -> str:
        return self.vram_budget if self.vram_budget_override is None else self.vram_budget_override

    @property
    def effective_max_replicas(self) -> int:
        return self.max_replicas if self.max_replicas_override is None else self.max_replicas_override


@dataclass(frozen=True, slots=True)
class Dial:
    """What one frontend found when it last called a node's advertised address."""

    node_id: NodeId
    frontend: str
    problem: str  # Empty: it answered.
    checked_at: datetime
    boot_id: BootId | None = None  # The life of the worker that was called; None: any.
    bus_closed: bool = False  # So is its connection to the bus: nothing is left that could be reached.


@dataclass(frozen=True, slots=True)
class CommandProbe:
    """What one frontend found when it last asked a node's worker something over the bus."""

    node_id: NodeId
    frontend: str
    problem: str  # Why commands from there do not reach the worker; empty: it answered.
    checked_at: datetime
    boot_id: BootId | None = None  # The boot of the worker that was asked; None: any.


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """Something that was done to a node. It keeps the node's name, so it outlives the node."""

    at: datetime
    node_id: NodeId | None
    node_name: str
    event: str
    detail: str = ""
    actor: str = ""


RESERVED_PREFIX = "node."  # What nodes are is not for admins to say.
_GIB = 1 << 30
_BUCKETS_GIB = ((80, "80GB+"), (48, "48GB"), (24, "24GB"), (16, "16GB"), (8, "8GB"))


def vram_bucket(total_vram: int) -> str:
    whole = total_vram // _GIB
    return next((name for least, name in _BUCKETS_GIB if whole >= least), f"{whole}GB")


def auto_labels(name: str, resources: Resources, max_replicas: int) -> Mapping[str, str]:
    labels = {"node.name": name, "node.replica-slots": str(max_replicas)}
    if resources.gpu_vendor:
        labels["gpu.vendor"] = resources.gpu_vendor
    if resources.total_vram > 0:
        labels["gpu.vram"] = vram_bucket(resources.total_vram)
    return labels


def merged_labels(
    existing: Mapping[str, Label], from_worker: Mapping[str, str], automatic: Mapping[str, str]
) -> Mapping[str, Label]:
    """The labels after a registration: an admin's stay as they are, all others are written anew."""
    written = {key: Label(value, LabelSource.WORKER) for key, value in from_worker.items()}
    written |= {key: Label(value, LabelSource.AUTO) for key, value in automatic.items()}
    return written | {key: label for key, label in existing.items() if label.source is LabelSource.ADMIN}


def labels_match(labels: Mapping[str, Label], selector: Mapping[str, str]) -> bool:
    """Every pair of the selector is there; the empty selector matches everything."""
    return all(key in labels and labels[key].value == value for key, value in selector.items())


BUDGET_ACCEPTED = "80%, 0.8, 12GB, 12GiB or a number of bytes"
_AMOUNT = re.compile(r"^\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>%|[kmgt]i?b|b|)\s*$", re.IGNORECASE)
_UNITS = {"b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def vram_ceiling(budget: str, total: int) -> int | None:
    """The most bytes of `total` that may be used; None for no cap. Raises Invalid for other text."""
    return _ceiling("VRAM budget", budget, total)


def ram_ceiling(budget: str, total: int) -> int | None:
    """As for VRAM."""
    return _ceiling("RAM budget", budget, total)


def model_files_ceiling(budget: str, total_disk: int) -> int | None:
    """The most bytes that model files fetched to a node may take; None for no cap. A share of a disk whose
    size is not known is no cap. Raises Invalid for other text."""
    ceiling = _ceiling("budget for model files", budget, total_disk or _UNKNOWN_DISK)
    return None if ceiling is not None and not total_disk and _is_share(budget) else ceiling


_UNKNOWN_DISK = 1 << 62


def _is_share(budget: str) -> bool:
    found = _AMOUNT.match(budget)
    return (
        found is not None and found["unit"] in ("", "%") and ("." in found["number"] or found["unit"] == "%")
    )


def _ceiling(what: str, budget: str, total: int) -> int | None:
    if not budget.strip():
        return None
    found = _AMOUNT.match(budget)
    if found is None:
        raise Invalid(f"{what} {budget!r} is not valid", hint=f"use {BUDGET_ACCEPTED}")
    number, unit = float(found["number"]), found["unit"].lower()
    if unit == "%":
        return _share(what, budget, number / 100, total)
    if unit == "" and (number < 1 or "." in found["number"]):
        return _share(what, budget, number, total)
    if unit == "" and number == 1:
        return total
    amount = number * _UNITS.get(unit, 1)
    if amount < 1 or not math.isfinite(amount) or amount >= 2**63:
        raise Invalid(f"{what} {budget!r} is out of range", hint=f"use {BUDGET_ACCEPTED}")
    return min(int(amount), total)


def _share(what: str, budget: str, fraction: float, total: int) -> int:
    if not 0 < fraction <= 1:
        raise Invalid(f"{what} {budget!r} is not between 0 and all of it", hint=f"use {BUDGET_ACCEPTED}")
    return int(total * fraction)


def node_vram_ceiling(node: Node) -> int | None:
    """A worker's budget that cannot be read means no cap, as its peers expect; an admin's was checked."""
    budget = node.effective_budget
    if not budget:  # Nearly always, and asked of each node of a fleet at each placement.
        return None
    try:
        return vram_ceiling(budget, node.resources.total_vram)
    except Invalid:
        return None


def usable_vram(node: Node) -> int:
    cap = node_vram_ceiling(node)
    free = node.resources.available_vram
    return free if cap is None else min(free, cap)
