"""What in a fleet needs a person: decided from what the API shows, for consoles and for `remuda doctor`
alike. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote

from remuda.wire.console import AttentionItem, AttentionLevel, RemedyCall
from remuda.wire.nodes import NodeView
from remuda.wire.operations import OpView, StepView, UpgradeItem
from remuda.wire.sizes import install_size

DISK_LOW_BYTES: Final = 5 << 30
DISK_FULL_BYTES: Final = 256 << 20
LEFT: Final = "left"  # By `remuda leave`.
JOINING: Final = "joining"  # Its worker has begun to connect a moment ago.
UNREACHABLE: Final = "unreachable"
_LOAD: Final = "load"  # Of operations.
FRONTENDS: Final = "frontends"  # In place of a node's id, for what the frontends do for themselves.
_NO_FAULT: Final = frozenset({"healthy", "pending", "draining", JOINING})
"""Of nodes whose status an admin decided, or has yet to decide, or that are on their way."""


def shown_status(node: NodeView) -> str:
    """Its status in a word for people: the protocol's five have none for a node that is heard, but that a
    frontend cannot reach, none for one that left the fleet, and none for one that is not ready yet."""
    if node.remuda is not None and node.remuda.joining and node.status == "unhealthy":
        return JOINING
    if node.remuda is not None and node.remuda.left and node.status == "offline":
        return LEFT
    unreachable = node.remuda is not None and node.remuda.unreachable
    return UNREACHABLE if unreachable and node.status == "healthy" else node.status


def needed(
    nodes: Sequence[NodeView],
    operations: Sequence[OpView],
    upgrades: Iterable[UpgradeItem] = (),
    unusable: Mapping[str, str] | None = None,
    storage_trouble: str = "",
    models: Collection[str] | None = None,
) -> tuple[AttentionItem, ...]:
    """Everything, problems first. Operations that are under way come with their steps. `models`: those that
    are configured; None: not known."""
    found = [
        *(item for node in nodes for item in of_node(node)),
        *(item for op in _still_matter(operations, models) for item in of_operation(op)),
        *(_drift(item) for item in upgrades if item.node_drift),
        *(_unusable(source, reason) for source, reason in (unusable or {}).items()),
        *([_storage(storage_trouble)] if storage_trouble else []),
    ]
    return tuple(sorted(found, key=lambda item: (item.level != "problem", item.entity != "node", item.id)))


def of_node(node: NodeView) -> Iterator[AttentionItem]:
    status = shown_status(node)
    if status == LEFT:
        return
    if is_finding(node) and status != JOINING:
        yield standing(node)
    if node.status != "offline" and node.total_disk and node.available_disk < DISK_LOW_BYTES:
        yield _disk(node)


def is_finding(node: NodeView | None) -> bool:
    """Whether how the node is needs a person."""
    return node is not None and (node.status != "healthy" or bool(_reasons(node)))


def standing(node: NodeView) -> AttentionItem:
    """Of a node that is not healthy, or has a reason to be looked at all the same."""
    status = shown_status(node)
    level: AttentionLevel = "warning" if status in _NO_FAULT else "problem"
    if status == UNREACHABLE and not _is_ours(node):  # Its backends listen on other ports, and may answer.
        level = "warning"
    reasons = "; ".join(_reasons(node)) or "no reason was given"
    code, action = _code_and_action(node, status)
    return _item(code, level, "node", node.id, node.name, f"{node.name} is {status}: {reasons}", action)


def _code_and_action(node: NodeView, status: str) -> tuple[str, RemedyCall | None]:
    facts = node.remuda
    if facts is not None and facts.claim is not None:
        return "name_claimed", _post("Approve", f"/api/nodes/{facts.claim.id}/approve")
    if status == "pending":
        return "node_pending", _post("Approve", f"/api/nodes/{node.id}/approve")
    if status == "draining" and facts is not None and facts.drained:
        return "node_drained", _post("Resume", f"/api/nodes/{node.id}/resume")
    return f"node_{status}", None


def _disk(node: NodeView) -> AttentionItem:
    full, left = node.available_disk < DISK_FULL_BYTES, install_size(node.available_disk)
    words = f"the disk of {node.name} is {'full' if full else 'nearly full'}: {left} left; free some space"
    code: str = "disk_full" if full else "disk_low"
    return _item(code, "problem" if full else "warning", "node", node.id, node.name, words)


def _still_matter(operations: Sequence[OpView], models: Collection[str] | None) -> Iterator[OpView]:
    """All but those that failed before the same succeeded, and failed loads of models that are gone."""
    done: dict[tuple[str, ...], datetime] = {}
    for op in operations:
        if op.status == "succeeded" and op.finished_at is not None:
            key = _what(op)
            done[key] = max(done.get(key, op.finished_at), op.finished_at)
    for op in operations:
        later = done.get(_what(op))
        if op.status == "failed" and op.kind == _LOAD and models is not None and op.model not in models:
            continue
        if op.status != "failed" or op.finished_at is None or later is None or later <= op.finished_at:
            yield op


def _what(op: OpView) -> tuple[str, ...]:
    if op.kind == _LOAD:  # Wherever it is loaded, it answers.
        return op.kind, op.model
    return op.kind, op.model, op.backend, op.name, op.selection


def of_operation(op: OpView) -> Iterator[AttentionItem]:
    name = op.model or op.backend or op.name or op.uri
    what = f"{op.kind.replace('_', ' ')} {name}"
    again = load_again(op.model) if op.kind == _LOAD else _post("Retry", f"/api/ops/{op.id}/retry")
    if op.status == "failed" and op.finished_at is not None and not op.dismissed:
        words = f"{what} failed: {op.error}"
        yield _item("operation_failed", "problem", "operation", op.id, name, words, again)
    for step in op.steps or () if op.finished_at is None else ():
        if fails_again(step):
            words = f"{what}{on_node(step)} {failing(step)}"
            level: AttentionLevel = "warning" if step.failures == 1 else "problem"
            place = f"{op.id}/{step.node_id}"
            yield _item("operation_failing", level, "operation", op.id, name, words, again, of=place)


def load_again(model: str) -> RemedyCall:
    """A load is not retried: its node was chosen by what was true then."""
    return _post("Load", f"/api/models/{quote(model)}/load")


def fails_again(step: StepView) -> bool:
    return step.state == "pending" and step.failures > 0 and step.problem is not None


def failing(step: StepView) -> str:
    """How often a step has failed, and why the last time."""
    times = "once" if step.failures == 1 else f"{step.failures} times"
    why = "" if step.problem is None else f": {step.problem.message}"
    return f"has failed {times} and is being retried{why}"


def on_node(step: StepView) -> str:
    """` on gpu-1`; nothing for what the frontends do for themselves."""
    return "" if step.node_id == FRONTENDS else f" on {step.node_name}"


def _drift(item: UpgradeItem) -> AttentionItem:
    name = item.backend_name
    others = ", ".join(f"{node.node_name} ({node.version or node.digest[:19]})" for node in item.node_drift)
    words = f"nodes have different versions of {name}; others than most: {others}"
    call = RemedyCall(
        label="Upgrade on all nodes",
        method="POST",
        path="/api/ops",
        body={"kind": "upgrade", "backend": name},
    )
    return _item("backend_drift", "warning", "backend", name, name, words, call)


def _unusable(source: str, reason: str) -> AttentionItem:
    words = f"{source} cannot be used: {reason}"
    return _item("model_unusable", "problem", "model", source, source, words)


def _storage(trouble: str) -> AttentionItem:
    words = f"models are not put into the object storage: {trouble}"
    return _item("storage_unusable", "warning", "frontend", FRONTENDS, "object storage", words)


def _item(
    code: str,
    level: AttentionLevel,
    entity: str,
    id: str,
    name: str,
    message: str,
    action: RemedyCall | None = None,
    *,
    of: str = "",
) -> AttentionItem:
    return AttentionItem(
        id=f"{code}/{of or id}",
        code=code,
        level=level,
        entity=entity,
        entity_id=id,
        entity_name=name,
        message=message,
        action=action,
    )


def _post(label: str, path: str) -> RemedyCall:
    return RemedyCall(label=label, method="POST", path=path)


def _is_ours(node: NodeView) -> bool:
    return node.remuda is not None and bool(node.remuda.version)


def _reasons(node: NodeView) -> Sequence[str]:
    return node.remuda.reasons if node.remuda is not None else ()
