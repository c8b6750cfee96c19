"""What `remuda doctor` concludes from what it saw, and how that is printed. Pure."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from remuda.cli.ops_state import short_id, steps_of, title
from remuda.cli.output import one_line
from remuda.cli.render import gib, span
from remuda.core.errors import UNREACHABLE_SINCE
from remuda.core.hints import pasted
from remuda.gateway.attention import (
    DISK_FULL_BYTES,
    DISK_LOW_BYTES,
    LEFT,
    failing,
    fails_again,
    is_finding,
    load_again,
    on_node,
    shown_status,
    standing,
)
from remuda.wire.admin import FrontendPart, Unready, UnreadyPart
from remuda.wire.console import AttentionItem
from remuda.wire.nodes import NodeView
from remuda.wire.operations import OpView, StepView
from remuda.wire.serving import UnusableModel
from remuda.wire.sizes import install_size
from remuda.worker.hardware.model import Hardware

_SKEW_MAX: Final = timedelta(seconds=5)
_FAILURE_OLD: Final = timedelta(days=1)
_NAMED_MAX: Final = 5
_STEERED: Final = ("paused", "cancelling")  # By a person: what waits then waits for that.
_FIGURES: Final = re.compile(r"\d+")  # Of one cause: times and ports differ.


_REMEDIES: Final[Mapping[FrontendPart, str]] = {
    "store": "check that the database runs, that it can be reached and written, and that its disk has room",
    "bus": "a bundled NATS server is restarted by itself, and its log says more; if it is an external one "
    "(--nats-url), check that it runs and that the frontend's machine can reach it",
    "frontend": "the frontend's log says more",
}


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that listens on a port."""

    pid: int
    name: str
    ours: bool


def ok(check: str, message: str) -> Finding:
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, Level.WARNING, message, remedy)


def problem(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, Level.PROBLEM, message, remedy)


def versions(ours: str, python: str, theirs: str | None) -> Finding:
    """`theirs` is the frontend's version; None when it cannot be told."""
    both = f"Remuda {ours}, Python {python}"
    if theirs is None or theirs == ours:
        return ok("versions", both)
    return warning(
        "versions",
        f"{both}, but the frontend is Remuda {theirs}",
        "upgrade the older of the two; until then they work together without the new features",
    )


def disk(folder: str, free: int) -> Finding:
    if free < DISK_FULL_BYTES:
        left = f"{free / (1 << 20):.1f} MiB"
        return problem("disk", f"the disk of {folder} is full: only {left} free", "free some space")
    if free < DISK_LOW_BYTES:
        return warning(
            "disk",
            f"the disk of {folder} is nearly full: {gib(free)} left",
            "free some space: models need more",
        )
    return ok("disk", f"{gib(free)} free for {folder}")


def unused_downloads(size_bytes: int, kept: timedelta) -> list[Finding]:
    """Of this machine's frontend."""
    words = (
        f"{install_size(size_bytes)} were downloaded for models that are not installed; without another try "
        f"they are removed after {kept.days} days"
    )
    return [ok("downloads", words)] if size_bytes else []


def clock(ahead: timedelta) -> Finding:
    """`ahead`: by how much this machine's clock is before the frontend's."""
    if abs(ahead) <= _SKEW_MAX:
        return ok("clock", "matches the frontend's")
    word = "ahead of" if ahead > timedelta(0) else "behind"
    return warning(
        "clock",
        f"this machine's clock is {span(abs(ahead))} {word} the frontend's",
        "synchronise both clocks (NTP): credentials expire",
    )


def readiness(unready: Unready | None) -> list[Finding]:
    """What the frontend says of its store and its bus; None: it can use both."""
    if unready is None:
        return [ok("store", "the frontend can use it"), ok("bus", "the frontend can use it")]
    parts = unready.parts or (
        UnreadyPart(reason=unready.reason),
    )  # An older frontend does not tell them apart.
    return [
        problem(one.part, f"the frontend is not ready: {one.reason}", _REMEDIES[one.part]) for one in parts
    ]


def starting(process: int | None) -> Finding:
    """A frontend that holds its folder and does not answer yet."""
    who = "" if process is None else f" (process {process})"
    return warning(
        "frontend",
        f"one is starting here{who} but does not answer yet",
        "it is waiting for its database or NATS server; its log says which",
    )


def worker(reason: str, process: int) -> Finding:
    """What the worker on this machine says of itself: an empty reason when it can be commanded."""
    if not reason:
        return ok("worker", f"runs here and receives commands (process {process})")
    remedy = "remuda nodes show, on the frontend's machine, says what it sees of this one"
    return problem("worker", f"runs here (process {process}), but receives no commands: {reason}", remedy)


def own_worker_stopped(up: int, reason: str) -> Finding:
    """The worker that `remuda up` starts again whenever it ends. An empty reason: it has not failed yet."""
    if not reason:
        return warning(
            "worker",
            f"remuda up (process {up}) is starting it",
            "wait a moment; if this lasts, its log says why",
        )
    remedy = "remuda up starts it again by itself once that is mended"
    return problem("worker", f"does not run, though remuda up does (process {up}): {reason}", remedy)


def node_removed(message: str, remedy: str) -> Finding:
    return problem("worker", message, remedy)


def worker_stopped(start: str) -> Finding:
    return problem("worker", "this machine has joined a fleet, but its worker is not running", start)


def port(use: str, number: int, trouble: str, holder: Holder | None, setting: str) -> Finding:
    """`trouble`: why the port cannot be listened on now; empty when the port is free."""
    if not trouble:
        return ok("ports", f"port {number} ({use}) is free")
    if holder is None:
        return problem("ports", f"{trouble} ({use})", f"stop what uses it, or choose another with {setting}")
    if holder.ours:
        return ok("ports", f"port {number} ({use}) is held by Remuda itself (process {holder.pid})")
    return problem(
        "ports",
        f"{trouble} ({use}), by {holder.name} (process {holder.pid})",
        f"stop that program, or choose another port with {setting}",
    )


def gpu(hardware: Hardware) -> list[Finding]:
    found = [
        warning("gpu", text, "until then this machine works without a GPU") for text in hardware.problems
    ]
    names = ", ".join(f"{card.name} ({gib(card.total_vram)})" for card in hardware.gpus)
    driver = f", driver {hardware.driver_version}" if hardware.driver_version else ""
    if names:
        return [*found, ok("gpu", f"{names}{driver}; builds for {hardware.capability} will be used")]
    builds = "CPU builds" if hardware.capability == "default" else f"builds for {hardware.capability}"
    return found or [ok("gpu", f"no GPU found; {builds} will be used")]


def fleet(nodes: Sequence[NodeView]) -> list[Finding]:
    """Nodes that left the fleet are left out. Each other one that is not healthy is one finding."""
    members = [node for node in nodes if shown_status(node) != LEFT]
    if not members:
        return [warning("nodes", "there are no nodes", "add a machine with `remuda join`")]
    healthy = sum(shown_status(node) == "healthy" for node in members)
    found = [_node(node) for node in members if is_finding(node)]
    return [*found, *([ok("nodes", f"{healthy} of {len(members)} are healthy")] if healthy else [])]


def operations(ops: Sequence[OpView], nodes: Sequence[NodeView]) -> list[Finding]:
    """Those that are under way and whose attempts keep failing, or that wait for their source. `ops` have
    their steps. A worker that does not answer is left out where its node is a finding already."""
    members = {node.id: node for node in nodes}
    failing = [(op, step) for op in ops for step in steps_of(op) if fails_again(step)]
    waiting = [(op, step) for op in ops for step in steps_of(op) if _awaits_source(op, step)]
    return [
        *(
            _failing(op, step, members.get(step.node_id))
            for op, step in failing
            if not (_unanswered(step) and is_finding(members.get(step.node_id)))
        ),
        *(_waiting(op, step) for op, step in waiting),
    ]


def _awaits_source(op: OpView, step: StepView) -> bool:
    """Its source does not answer, which counts as no failure until it is given up."""
    if op.status in _STEERED or step.state != "pending" or step.problem is None:
        return False
    return not fails_again(step) and UNREACHABLE_SINCE in step.problem.message


def _waiting(op: OpView, step: StepView) -> Finding:
    assert step.problem is not None, "its source does not answer"
    id = short_id(op.id)
    tries = f"remuda ops retry {id} tries at once, remuda ops cancel {id} ends it"
    remedy = f"{step.problem.hint}; {tries}" if step.problem.hint else tries
    return warning("operations", f"{title(op)}{on_node(step)} waits: {step.problem.message}", remedy)


def _unanswered(step: StepView) -> bool:
    return step.problem is not None and step.problem.code == "no_responders"


def _failing(op: OpView, step: StepView, node: NodeView | None) -> Finding:
    assert step.problem is not None, "only failing steps are listed"
    message = f"{title(op)}{on_node(step)} {failing(step)}"
    facts = None if node is None else node.remuda
    if _unanswered(step) and facts is not None and facts.heard_seconds_ago is not None:
        message = f"{message}; its last heartbeat came {facts.heard_seconds_ago} s ago"
    show = f"remuda ops show {short_id(op.id)}"
    remedy = f"{step.problem.hint}; {show} says more" if step.problem.hint else f"{show} says more"
    return Finding("operations", Level.WARNING if step.failures == 1 else Level.PROBLEM, message, remedy)


def models(unusable: Sequence[UnusableModel]) -> list[Finding]:
    """Files and stored models that the frontend cannot use."""
    return [
        problem("models", f"{one.source} cannot be used: {one.reason}", "correct it, or remove it")
        for one in unusable
    ]


def failed_installs(ops: Sequence[OpView], there: Collection[str], now: datetime) -> list[Finding]:
    """Models that were to be installed and could not be: one for each cause. Those that are `there` by now
    are no trouble, and what failed days ago is in the history."""
    latest: dict[str, OpView] = {}
    for op in sorted(ops, key=lambda one: one.finished_at or now, reverse=True):
        if not op.dismissed and op.model not in there and now - (op.finished_at or now) < _FAILURE_OLD:
            latest.setdefault(op.model, op)
    causes = defaultdict[str, list[OpView]](list)
    for op in latest.values():
        causes[_FIGURES.sub("", op.error or op.message)].append(op)
    return [_failed_install(alike) for alike in causes.values()]


def _failed_install(alike: Sequence[OpView]) -> Finding:
    op, names = alike[0], [one.model for one in alike]
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    ids = " ".join(short_id(one.id) for one in alike[:_NAMED_MAX])
    return warning(
        "models",
        f"{', '.join(names[:_NAMED_MAX])}{more} could not be installed: {op.error or op.message}",
        f"remuda ops show {short_id(op.id)} says more; remuda ops dismiss {ids} puts it away",
    )


def storage(trouble: str) -> list[Finding]:
    """`trouble`: why models are not put into the object storage; empty: they are, or there is none."""
    remedy = "check storage-url, its bucket and keys; workers take models from nodes and frontends meanwhile"
    words = f"models are not put into the object storage: {trouble}"
    return [warning("storage", words, remedy)] if trouble else []


def attention(items: Sequence[AttentionItem], told: Collection[str]) -> list[Finding]:
    """What the frontend says needs a person and no other check looks for. `told`: operations of which there
    is a finding already. One that failed is over, and breaks nothing by itself: a warning."""
    found = list[Finding]()
    for item in items:
        name = pasted(item.entity_name)
        match item.code:
            case "disk_low" | "disk_full":
                remedy = f"remuda nodes disk {name} shows what takes the room"
                found.append(Finding("nodes", Level(item.level), item.message, remedy))
            case "backend_drift":
                found.append(warning("backends", item.message, f"remuda backends upgrade {name}"))
            case "operation_failed" if item.entity_id not in told:
                id = short_id(item.entity_id)
                again = f"remuda ops retry {id}"
                if item.action == load_again(item.entity_name):
                    again = f"remuda models load {name}"
                remedy = f"{again} tries again; remuda ops dismiss {id} puts it away"
                found.append(warning("operations", item.message, remedy))
            case _:
                pass  # Nodes, operations and models have checks of their own.
    return found


def galleries(unread: Sequence[str]) -> list[Finding]:
    """`unread`: a sentence for each that could not be read."""
    remedy = "check the frontend's network, or name other galleries with --backend-galleries"
    return [warning("galleries", sentence, remedy) for sentence in unread]


def models_folder(folder: Path) -> Finding:
    return problem(
        "models folder",
        f"{folder} does not exist, so there are no models in it",
        "create it, or correct --models-path",
    )


def variables(strays: Mapping[str, str]) -> list[Finding]:
    return [warning("settings", f"{name} is not a setting", hint) for name, hint in strays.items()]


def _node(node: NodeView) -> Finding:
    needs = standing(node)
    return Finding("nodes", Level(needs.level), needs.message, f"remuda nodes show {pasted(node.name)}")


_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def page(found: Sequence[Finding]) -> RenderableType:
    """One finding a line, with what to do about it below, and the sum of it all at the end."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for finding in found:
        table.add_row(Text(finding.level.value, _STYLES[finding.level]), finding.check, _words(finding))
    return Group(table, Text(), Text(verdict(found)))


def verdict(found: Sequence[Finding]) -> str:
    problems, warnings = (
        sum(finding.level is level for finding in found) for level in (Level.PROBLEM, Level.WARNING)
    )
    if problems:
        return f"{_counted(problems, 'problem')} and {_counted(warnings, 'warning')}"
    return f"no problems, {_counted(warnings, 'warning')}" if warnings else "all is well"


def _words(finding: Finding) -> Text:
    text = Text(one_line(finding.message))
    if finding.level is not Level.OK and finding.remedy:
        text.append(f"\n-> {one_line(finding.remedy)}", "dim")
    return text


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
