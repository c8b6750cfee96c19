"""Which installed backends have a newer version or differ between nodes, and for which that is unknown; and
which versions did not start when they were rolled out: they are not installed again unless asked for by
force. Pure.

It judges what nodes have now, so that an upgrade which has happened is an upgrade less at the next look.
Bad versions are known from the steps that found out; another digest under the same tag is another version.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from remuda.core.errors import Conflict
from remuda.fleet.verdicts import ObservedNode, is_counted, is_localai
from remuda.gallery.model import Found, GalleryEntry, Reading, find
from remuda.gallery.references import is_image, registry
from remuda.ops.concurrency import proven
from remuda.ops.model import Kind, Stage, State, Step
from remuda.ops.reasons import StepCause, because
from remuda.ops.selection import Holding, from_reference, holdings
from remuda.ops.steps import LOST, PROOF_FAILED
from remuda.ops.targets import Draft, OperationPlan

_DEVELOPMENT: Final = "-development"
NOT_ASKED: Final = "not checked yet"
NOT_ASKED_SINCE: Final = "not checked since the last install"


@dataclass(frozen=True, slots=True)
class Upgrade:
    backend: str
    installed_version: str = ""
    available_version: str = ""
    installed_digest: str = ""
    available_digest: str = ""
    drift: tuple[Holding, ...] = ()  # Those that have something else than most.


@dataclass(frozen=True, slots=True)
class ImageStatus:
    """What was last heard of an image. A digest may be older than the trouble."""

    digest: str = ""
    trouble: str = ""  # Why the last check failed.
    at: datetime | None = None  # When the digest was heard.


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A gallery or registry that could not be asked, and the installed backends it may have newer ones of."""

    source: str
    reason: str
    backends: tuple[str, ...]
    at: datetime | None = None  # When it last answered, as far as is known.


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """A gallery or registry that was asked, when, and about which installed backends."""

    source: str
    at: datetime
    backends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Installed:
    """One name on the nodes: those whose gallery decides, and those that came from references."""

    name: str
    entry: GalleryEntry | None
    holders: tuple[Holding, ...]
    by_reference: tuple[Holding, ...] = ()

    @property
    def images(self) -> frozenset[str]:
        """Those that only a digest can tell apart. What is named by its digest never changes."""
        references = {one.artifact.uri for one in self.by_reference}
        if self.entry is not None and not self.entry.version:
            references.add(self.entry.uri)
        return frozenset(uri for uri in references if is_image(uri) and "@" not in uri)

    def holders_of(self, uri: str) -> list[Holding]:
        """Those that this image is the newest version for."""
        named = [one for one in self.by_reference if one.artifact.uri == uri]
        if self.entry is not None and self.entry.uri == uri:
            named += [one for one in self.holders if one not in self.by_reference]
        return named


def candidates(nodes: Sequence[ObservedNode], readings: Sequence[Reading]) -> dict[str, frozenset[str]]:
    """The installed backends that only a digest can tell apart, with the images to ask about."""
    return {one.name: one.images for one in _compared(nodes, readings) if one.images}


def upgrades(
    nodes: Sequence[ObservedNode], readings: Sequence[Reading], statuses: Mapping[str, ImageStatus]
) -> dict[str, Upgrade]:
    """By name. `statuses` has what each image's tag stands for now, where that is known."""
    judged = {one.name: _judge(one, statuses) for one in _compared(nodes, readings)}
    return {name: upgrade for name, upgrade in judged.items() if upgrade is not None}


def unchecked(
    nodes: Sequence[ObservedNode], readings: Sequence[Reading], statuses: Mapping[str, ImageStatus]
) -> list[Unchecked]:
    """Sources that could not be asked, so that what is not listed as an upgrade may be one all the same."""
    reasons: dict[str, str] = {}
    names = defaultdict[str, set[str]](set)
    answered: dict[str, datetime] = {}
    for one in _compared(nodes, readings):
        name = one.name
        for uri in one.images:
            trouble = statuses[uri].trouble if uri in statuses else NOT_ASKED
            if not trouble and any(_outran(holder, statuses[uri]) for holder in one.holders_of(uri)):
                trouble = NOT_ASKED_SINCE
            if trouble:
                source = f"registry {registry(uri)}"
                reasons.setdefault(source, trouble)
                names[source].add(name)
                _note_oldest(answered, source, statuses.get(uri, _UNHEARD).at)
    for reading in readings:
        if reading.trouble and (affected := _from_gallery(nodes, reading)):
            source = f"gallery {reading.gallery.name}"
            reasons[source], names[source] = reading.trouble, affected
            _note_oldest(answered, source, reading.confirmed_at)
    return [
        Unchecked(source, reasons[source], tuple(sorted(names[source])), answered.get(source))
        for source in sorted(reasons)
    ]


def checked_sources(
    nodes: Sequence[ObservedNode], readings: Sequence[Reading], statuses: Mapping[str, ImageStatus]
) -> list[CheckedSource]:
    """Whom what is said rests on, and when each was asked: the longest ago, where it was asked several times.
    Those of `unchecked` are left out."""
    left_out = {one.source for one in unchecked(nodes, readings, statuses)}
    checked_at: dict[str, datetime] = {}
    names = defaultdict[str, set[str]](set)
    for one in _compared(nodes, readings):
        for uri in one.images:
            source = f"registry {registry(uri)}"
            names[source].add(one.name)
            _note_oldest(checked_at, source, statuses.get(uri, _UNHEARD).at)
    for reading in readings:
        if not reading.gallery.builtin and (affected := _from_gallery(nodes, reading)):
            source = f"gallery {reading.gallery.name}"
            names[source] = affected
            _note_oldest(checked_at, source, reading.confirmed_at)
    return [
        CheckedSource(source, checked_at[source], tuple(sorted(names[source])))
        for source in sorted(checked_at)
        if source not in left_out
    ]


def _note_oldest(instants: dict[str, datetime], source: str, at: datetime | None) -> None:
    if at is not None:
        instants[source] = min(at, instants.get(source, at))


def unread(readings: Sequence[Reading], unchecked_sources: Sequence[Unchecked]) -> list[Unchecked]:
    """Galleries that could not be read either, though nothing installed came from them."""
    known = {one.source for one in unchecked_sources}
    lost = [Unchecked(f"gallery {one.gallery.name}", one.trouble, ()) for one in readings if one.trouble]
    return [one for one in lost if one.source not in known]


def _from_gallery(nodes: Sequence[ObservedNode], reading: Reading) -> set[str]:
    """What came from it, or from a gallery that an older worker does not name."""
    held = holdings([node for node in nodes if is_counted(node)])
    return {
        name
        for name, holders in held.items()
        for one in holders
        if one.artifact.uri and not one.artifact.uri.startswith("builtin:")
        if one.artifact.gallery_url == reading.gallery.url
        or (not one.artifact.gallery_url and not from_reference(one.artifact, find([reading], name)))
    }


def _compared(nodes: Sequence[ObservedNode], readings: Sequence[Reading]) -> list[_Installed]:
    held = holdings([node for node in nodes if is_counted(node)])
    compared = (_installed(name, holders, find(readings, name)) for name, holders in held.items())
    return [one for one in compared if one is not None and not _superseded(one.name, held)]


def _superseded(name: str, held: Mapping[str, tuple[Holding, ...]]) -> bool:
    return not name.endswith(_DEVELOPMENT) and name + _DEVELOPMENT in held


def _installed(name: str, holders: tuple[Holding, ...], found: Found | None) -> _Installed | None:
    """None for what cannot be compared: nothing is known of where it came from, it ships with Remuda and is
    upgraded with its worker, or it is a meta backend, which is no build."""
    by_reference = tuple(one for one in holders if from_reference(one.artifact, found))
    entry = None if found is None or found.entry.builtin or found.entry.meta else found.entry
    if entry is None:
        return _Installed(name, None, by_reference, by_reference) if by_reference else None
    return _Installed(name, entry, holders, by_reference)


def _judge(one: _Installed, statuses: Mapping[str, ImageStatus]) -> Upgrade | None:
    holders = [holder for holder in one.holders if not _never_told(one, holder)]
    if not holders:
        return None
    version, digest = _majority(holders)
    drift = tuple(holder for holder in holders if _pair(holder) != (version, digest))
    by_gallery = [holder for holder in holders if holder not in one.by_reference]
    outdated = [
        holder
        for holder in one.by_reference
        if holder in holders and _moved(holder, statuses.get(holder.artifact.uri, _UNHEARD))
    ]
    available = statuses[outdated[0].artifact.uri].digest if outdated else ""
    if one.entry is not None and one.entry.version and by_gallery:
        # Nothing recorded counts as old: there is no telling, and after an upgrade there is.
        if drift or outdated or any(holder.artifact.version != one.entry.version for holder in by_gallery):
            return Upgrade(one.name, version, one.entry.version, digest, available, drift)
        return None
    if one.entry is not None and by_gallery:
        offered = statuses.get(one.entry.uri, _UNHEARD)
        if any(_moved(holder, offered) for holder in by_gallery):
            outdated, available = by_gallery, offered.digest
    if not outdated and not drift:
        return None
    return Upgrade(one.name, installed_digest=digest, available_digest=available, drift=drift)


_UNHEARD: Final = ImageStatus()


def _moved(holder: Holding, status: ImageStatus) -> bool:
    """The tag it comes from stands for something else now than what is installed."""
    other = bool(status.digest) and holder.artifact.digest != status.digest
    return other and not _outran(holder, status)


def _outran(holder: Holding, status: ImageStatus) -> bool:
    """What it has was installed after the tag was last looked at: then what was heard may be the older."""
    if not status.digest or holder.artifact.digest == status.digest or status.at is None:
        return False
    try:
        return datetime.fromisoformat(holder.artifact.installed_at) > status.at
    except (ValueError, TypeError):  # Missing, or without a time zone.
        return False


def _majority(holders: Iterable[Holding]) -> tuple[str, str]:
    """What most have; of equally many, the greatest, so that the answer does not depend on their order."""
    counts = Counter(map(_pair, holders))
    return max(counts, key=lambda pair: (counts[pair], pair))


def _pair(holding: Holding) -> tuple[str, str]:
    return holding.artifact.version, holding.artifact.digest


def _never_told(one: _Installed, holding: Holding) -> bool:
    """LocalAI's workers record no digest of an image that is written with oci://, however new it is."""
    artifact = holding.artifact
    uri = artifact.uri or ("" if one.entry is None else one.entry.uri)
    silent = is_localai(holding.standing.node) and uri.startswith("oci://") and not artifact.digest
    return silent and not (one.entry is not None and one.entry.version)


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
    reasons = tuple(dict.fromkeys(reason for reason, _ in against.values()))
    if kind is not Kind.UPGRADE:
        return replace(plan, warnings=(*plan.warnings, *reasons))
    drafts = tuple(
        replace(draft, step=_left_out(draft.step, *against[draft.step.node]))
        if draft.step.node in against
        else draft
        for draft in plan.drafts
    )
    if all(draft.step.state is State.SKIPPED for draft in drafts):
        hints = dict.fromkeys(hint for _, hint in against.values())
        raise KnownBadVersion("; ".join(reasons), hint="; ".join(hints))
    return replace(plan, drafts=drafts)


def _objection(draft: Draft, known: BadVersions) -> tuple[str, str] | None:
    """What speaks against a step, and what helps. Where it is unknown which bytes it would bring, it might
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
    return replace(step, state=State.SKIPPED, why=because(StepCause.KNOWN_BAD, reason, hint))


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
    at the next upgrade."""
    if upgrade.available_digest:
        return known.get(upgrade.available_digest)
    same = (
        bad
        for bad in known.values()
        if upgrade.available_version and bad.version == upgrade.available_version
        if upgrade.backend in bad.names
    )
    return next(same, None)
