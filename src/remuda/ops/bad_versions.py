"""Versions that did not start when they were rolled out. They are not installed again unless asked for by
force. Pure.

They are known from the steps that found out. Another digest under the same tag is another version.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from remuda.core.errors import Conflict
from remuda.ops.model import Kind, Stage, State, Step
from remuda.ops.pacing import proven
from remuda.ops.steps import LOST, PROOF_FAILED
from remuda.ops.targets import Draft, OperationPlan
from remuda.ops.upgrades import Upgrade

_DOES_NOT_START: Final = "the new version does not start: "
_DIGEST_CHARS: Final = 19  # `sha256:` and twelve more.
_FORCE: Final = "use --force to try again"
_WAIT_OR_FORCE: Final = "try again when it can be reached, or use --force"


class KnownBadVersion(Conflict):
    """Where it was tried it did not start."""

    code = "known_bad_version"


@dataclass(frozen=True, slots=True)
class BadVersion:
    names: tuple[str, ...]  # Of the backend: the build's own first.
    digest: str
    version: str  # As its gallery calls it; may be empty.
    node: str  # The name of the node that could not start it.
    at: datetime
    reason: str

    def __str__(self) -> str:
        called = " ".join(filter(None, (self.version, self.digest[:_DIGEST_CHARS])))
        when = self.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"version {called} of {self.names[0]} failed to start on {self.node} at {when}: {self.reason}"


BadVersions = Mapping[str, BadVersion]
"""By digest."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """An upgrade that is not offered."""

    backend: str
    bad: BadVersion


def bad_versions(tried: Iterable[tuple[Step, datetime]]) -> BadVersions:
    """From the steps that had a version started, and when they did; of several the last one decides."""
    found: dict[str, BadVersion] = {}
    for step, at in sorted(tried, key=lambda one: one[1]):
        if not step.goal.digest:
            continue
        if proven(step):
            found.pop(step.goal.digest, None)
        elif reason := _why_bad(step):
            goal = step.goal
            found[goal.digest] = BadVersion(goal.names, goal.digest, goal.version, step.node_name, at, reason)
    return found


def _why_bad(step: Step) -> str:
    """Empty where nothing is known against the version."""
    problem = step.problem
    gone_back = step.stage is Stage.ROLL_BACK
    if problem is None or not (gone_back or (step.stage is Stage.PROVE and step.state is State.FAILED)):
        return ""
    if problem.code == PROOF_FAILED or (gone_back and problem.code == LOST.code):
        return problem.message.removeprefix(_DOES_NOT_START)
    return ""


def without_bad(plan: OperationPlan, kind: Kind, known: BadVersions) -> OperationPlan:
    """An upgrade leaves out nodes that would get such a version, or might; KnownBadVersion if that is all of
    them. Who installs one names it, and is only told."""
    found = {draft.step.node: _objection(draft, known) for draft in plan.drafts}
    against = {node: one for node, one in found.items() if one is not None}
    if not against:
        return plan
    told = tuple(dict.fromkeys(reason for reason, _ in against.values()))
    if kind is not Kind.UPGRADE:
        return replace(plan, warnings=(*plan.warnings, *told))
    drafts = tuple(
        replace(draft, step=_left_out(draft.step, *against[draft.step.node]))
        if draft.step.node in against
        else draft
        for draft in plan.drafts
    )
    if all(draft.step.state is State.SKIPPED for draft in drafts):
        hints = dict.fromkeys(hint for _, hint in against.values())
        raise KnownBadVersion("; ".join(told), hint="; ".join(hints))
    return replace(plan, drafts=drafts)


def _objection(draft: Draft, known: BadVersions) -> tuple[str, str] | None:
    """What speaks against a step, and what helps. Where nobody could say which bytes it would bring, it might
    bring any that its backend is known to have failed with."""
    step, build = draft.step, draft.build
    if step.state is State.SKIPPED:
        return None
    digest = step.goal.digest or (build.uri.partition("@")[2] if build else "")
    if digest in known:
        return str(known[digest]), _FORCE
    same = [bad for bad in known.values() if set(bad.names) & set(step.goal.names)]
    if digest or build is None or not draft.trouble or not same:
        return None
    last = max(same, key=lambda bad: bad.at)
    return f"{draft.trouble}, and {last}", _WAIT_OR_FORCE


def _left_out(step: Step, reason: str, hint: str) -> Step:
    return replace(step, state=State.SKIPPED, reason=f"{reason}; {hint}")


def offered(
    found: Mapping[str, Upgrade], known: BadVersions
) -> tuple[Mapping[str, Upgrade], tuple[Withheld, ...]]:
    """The upgrades to offer, and those that are not. Nodes that differ from others are shown all the same."""
    kept: dict[str, Upgrade] = {}
    withheld: list[Withheld] = []
    for name, upgrade in found.items():
        bad = _of_upgrade(upgrade, known)
        if bad is not None:
            withheld.append(Withheld(name, bad))
            upgrade = replace(upgrade, available_version="", available_digest="")
        if bad is None or upgrade.drift:
            kept[name] = upgrade
    return kept, tuple(withheld)


def _of_upgrade(upgrade: Upgrade, known: BadVersions) -> BadVersion | None:
    """By its digest. Where a gallery tells only a version, that has to do: what it stands for now is asked
    when somebody upgrades."""
    if upgrade.available_digest:
        return known.get(upgrade.available_digest)
    same = (
        bad
        for bad in known.values()
        if upgrade.available_version and bad.version == upgrade.available_version
        if upgrade.backend in bad.names
    )
    return next(same, None)
