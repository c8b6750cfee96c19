"""Nodes as people see them. Pure: from the frontend's answers to tables."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from remuda.cli.output import one_line
from remuda.cli.render import UNKNOWN, Column, ago, facts, fitting, gib, local, part_of
from remuda.gateway.attention import JOINING, LEFT, UNREACHABLE, shown_status
from remuda.wire.admin import HistoryItem
from remuda.wire.disk import FileOnDisk, NodeDiskView
from remuda.wire.node_facts import NodeMemory
from remuda.wire.nodes import NodeFacts, NodeView
from remuda.wire.sizes import install_size

_OVERDUE: Final = timedelta(seconds=12)  # Heartbeats come every 10 s, unless set otherwise.

_STYLES: Final = {
    "healthy": "green",
    "draining": "yellow",
    "pending": "cyan",
    JOINING: "cyan",
    "unhealthy": "red",
    "offline": "red",
    UNREACHABLE: "red",
    LEFT: "dim",
}


def node_list(nodes: Sequence[NodeView], now: datetime, output: Console) -> RenderableType:
    """A table that fits, and below it why each node takes no work that takes none."""
    if not nodes:
        return Text(
            "no nodes yet: to add a machine, run the command there that `remuda join-line` prints "
            "(the own node of `remuda up` appears by itself, within seconds)"
        )
    table = fitting(
        [
            Column("NAME", [node.name for node in nodes]),
            Column("STATUS", [_status(node, now) for node in nodes]),
            Column("ADDRESS", [node.address or UNKNOWN for node in nodes], needed=3),
            Column("GPU", [node.gpu_vendor or UNKNOWN for node in nodes], needed=1),
            Column("VRAM FREE", [_vram(node) for node in nodes], right=True),
            Column(
                "RAM FREE",
                [_ram(node) for node in nodes],
                needed=2,
                right=True,
            ),
            Column(
                "DISK FREE",
                [_free(node, node.available_disk, node.total_disk) for node in nodes],
                needed=4,
                right=True,
            ),
            Column("SLOTS", [str(node.max_replicas_per_model) for node in nodes], needed=5, right=True),
            Column("HEARD", [ago(node.last_heartbeat, now) for node in nodes], right=True),
            Column("LABELS", [str(len(node.labels)) for node in nodes], needed=6, right=True),
        ],
        output,
    )
    return Group(table, *_reasons(nodes))


def node_page(
    node: NodeView, history: Sequence[HistoryItem], now: datetime, output: Console
) -> RenderableType:
    """Everything about one node."""
    parts: list[RenderableType] = [facts(_facts(node, now)), *_reasons([node])]
    if node.labels:
        parts += [Text("\nLabels", style="bold"), facts(list(node.labels.items()))]
    if history:
        columns = [
            Column("WHEN", [local(row.at) for row in history]),
            Column("WHAT", [row.event for row in history]),
            Column("DETAIL", [row.detail or UNKNOWN for row in history]),
            Column("BY", [row.actor or UNKNOWN for row in history]),
        ]
        parts += [Text("\nHistory", style="bold"), fitting(columns, output)]
    return Group(*parts)


def _facts(node: NodeView, now: datetime) -> list[tuple[str, RenderableType]]:
    remuda = node.remuda
    known: list[tuple[str, RenderableType]] = [
        ("Name", node.name),
        ("Id", node.id),
        ("Status", _status(node, now)),
        ("Type", node.node_type),
        ("Address", node.address or UNKNOWN),
        ("HTTP address", node.http_address or UNKNOWN),
        ("GPU", " ".join(filter(None, (node.gpu_vendor, node.gpu_compute_capability))) or UNKNOWN),
        ("Capability", node.capability or UNKNOWN),
        ("VRAM free", _vram(node)),
        ("VRAM budget", _budget(node)),
        ("RAM free", _ram(node)),
        ("Set aside for models", _set_aside(node)),
        ("Disk free", _free(node, node.available_disk, node.total_disk)),
        (
            "Replicas per model",
            f"{node.max_replicas_per_model}{_by_admin(node.max_replicas_per_model_manually_set)}",
        ),
        ("Heard", ago(node.last_heartbeat, now)),
        ("Known since", local(node.created_at)),
    ]
    if remuda is not None:
        known += [
            ("Reachability", remuda.reachability),
            ("Approved", _yes(remuda.approved)),
            ("Drained", _yes(remuda.drained)),
            ("Shutting down", _yes(remuda.leaving)),
            ("Remuda version", remuda.version or "none (LocalAI worker)"),
            ("Boot", remuda.boot_id or UNKNOWN),
            ("Identity", _identity(remuda)),
            *_strangers(remuda),
        ]
    return known


def _identity(remuda: NodeFacts) -> str:
    source = remuda.source or "an unknown address"
    match remuda.identified_by:
        case "secret":
            return "verified by its worker's own secret"
        case "invite":
            return "verified by its invite"
        case "address":
            return f"identified by address only ({source}); use remuda nodes invite to verify it"
        case _:
            return UNKNOWN


def _strangers(remuda: NodeFacts) -> list[tuple[str, RenderableType]]:
    """Other machines that tried to be this node."""
    rows: list[tuple[str, RenderableType]] = []
    if remuda.contested_from:
        rows.append(("Refused", f"a registration under this name from {remuda.contested_from}"))
    if (claim := remuda.claim) is not None:
        rows.append(("Wants its name", f"a machine at {claim.source}, reached at {claim.address or UNKNOWN}"))
    return rows


def _reasons(nodes: Sequence[NodeView]) -> list[Text]:
    lines = [
        Text.assemble((one_line(node.name), "bold"), f": {one_line(reason)}")
        for node in nodes
        if node.remuda is not None
        for reason in node.remuda.reasons
    ]
    return [Text(), *lines] if lines else []


def _status(node: NodeView, now: datetime) -> Text:
    """With its age where a heartbeat is overdue, but not yet for so long that the status is another."""
    status = shown_status(node)
    text = Text(one_line(status), style=_STYLES.get(status, ""))
    overdue = node.last_heartbeat.year > 1 and now - node.last_heartbeat >= _OVERDUE
    if status == "healthy" and overdue:
        text.append(f", last heard {ago(node.last_heartbeat, now)}", "yellow")
    return text


def _vram(node: NodeView) -> str:
    """Of what may be used: a budget lowers the ceiling, and what is free never exceeds it."""
    memory = _memory(node)
    available = node.available_vram if memory is None else memory.free_vram
    return _free(node, available, node.vram_budget_bytes or node.total_vram)


def _ram(node: NodeView) -> str:
    memory = _memory(node)
    return _free(node, node.available_ram if memory is None else memory.free_ram, node.total_ram)


def _set_aside(node: NodeView) -> str:
    memory = _memory(node)
    if memory is None:
        return UNKNOWN
    kinds = ((memory.set_aside_vram, "VRAM"), (memory.set_aside_ram, "RAM"))
    return ", ".join(f"{gib(size)} of {kind}" for size, kind in kinds if size) or "nothing"


def _memory(node: NodeView) -> NodeMemory | None:
    return None if node.remuda is None else node.remuda.memory


def _free(node: NodeView, available: int, total: int) -> str:
    """How much of an offline node is free is not known; its totals hardly change."""
    return f"?/{gib(total)}" if node.status == "offline" and total > 0 else part_of(available, total)


def _budget(node: NodeView) -> str:
    if not node.vram_budget:
        return UNKNOWN
    amount = f" ({gib(node.vram_budget_bytes)})" if node.vram_budget_bytes else ""
    return f"{node.vram_budget}{amount}{_by_admin(node.vram_budget_manually_set)}"


def _by_admin(manually_set: bool) -> str:
    return ", set by an admin" if manually_set else ""


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def disk_page(disk: NodeDiskView, now: datetime, output: Console) -> RenderableType:
    """The model files on a node: what they take, who needs them, and why each stays when room is needed."""
    fetched = [file for file in disk.files if file.fetched]
    figures = [("fetched here", f"{install_size(disk.fetched_bytes)}, {_files(len(fetched))}")]
    if disk.budget_bytes is None:
        figures.append(("budget", "none: as much as fits"))
    else:
        by_admin = _by_admin(disk.budget_manually_set)
        figures.append(("budget", f"{disk.budget} ({install_size(disk.budget_bytes)}){by_admin}"))
    if disk.free_bytes is not None:
        figures.append(("free disk", part_of(disk.free_bytes, disk.total_bytes)))
    if disk.coming_bytes:
        figures.append(("being copied", install_size(disk.coming_bytes)))
    if not disk.files:
        return Group(facts(figures), Text("\nno model files are reported there"))
    columns = [
        Column("FILE", [file.path for file in disk.files]),
        Column("SIZE", [install_size(file.size) for file in disk.files], right=True),
        Column("MODELS", [", ".join(file.models) or UNKNOWN for file in disk.files], needed=1),
        Column("NEEDED", [_needed(file, now) for file in disk.files], needed=2, right=True),
        Column("STAYS BECAUSE", [file.keep or "(may go)" for file in disk.files]),
    ]
    return Group(facts(figures), Text(""), fitting(columns, output))


def _needed(file: FileOnDisk, now: datetime) -> str:
    if not file.used_ms:
        return UNKNOWN
    return ago(datetime.fromtimestamp(file.used_ms / 1000, UTC), now)


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"
