"""Backends of the fleet as people see them. Pure: from the frontend's answers to tables."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from remuda.cli.output import one_line
from remuda.cli.render import UNKNOWN, Column, fitting, local, span
from remuda.core.hints import pasted
from remuda.wire.operations import (
    BackendFits,
    BackendItem,
    BadVersionItem,
    NodeHolding,
    UpgradeItem,
    UpgradesReply,
)

_DIGEST_CHARS: Final = 19  # `sha256:` and twelve more.
_NAMES_MAX: Final = 4
_JUST_NOW_S: Final = 60.0
UP_TO_DATE: Final = "everything is up to date"
NOT_ALL_CHECKED: Final = "nothing newer was found, but not everything could be checked"


def installed_table(
    items: Sequence[BackendItem], upgrades: Mapping[str, UpgradeItem], output: Console
) -> RenderableType:
    """A row for each thing that nodes have of a backend: several, where nodes differ."""
    if not items:
        return Text("no backends are installed; see `remuda backends available`")
    rows = [
        (item, pair, nodes)
        for item in sorted(items, key=lambda item: item.name)
        for pair, nodes in _by_content(item.nodes or ())
    ]
    columns = [
        Column("NAME", [item.name for item, _, _ in rows]),
        Column("VERSION", [version or UNKNOWN for _, (version, _), _ in rows]),
        Column("DIGEST", [short_digest(digest) for _, (_, digest), _ in rows], needed=2),
        Column("NODES", [some_of([node.node_name for node in nodes]) for _, _, nodes in rows]),
        Column("NEWS", [_news(upgrades.get(item.name), item, nodes) for item, _, nodes in rows], needed=1),
    ]
    return fitting(columns, output)


def available_table(items: Sequence[BackendItem], fits: BackendFits, output: Console) -> RenderableType:
    if not items:
        return Text(none_has_it(all_read=not fits.unread))
    columns = [
        Column("NAME", [item.name for item in items]),
        Column("GALLERY", [item.gallery for item in items], needed=3),
        Column("FITS", [_fitting(fits.backends.get(item.id, ()), len(fits.nodes)) for item in items]),
        Column("INSTALLED", [_installed(item) for item in items], needed=1),
        Column("DESCRIPTION", [_first_sentence(item.description) for item in items], needed=2),
    ]
    return fitting(columns, output)


def none_has_it(*, all_read: bool) -> str:
    return "no gallery has such a backend" if all_read else "no gallery that could be read has such a backend"


def upgrade_table(rows: Sequence[UpgradeItem], output: Console) -> RenderableType:
    columns = [
        Column("NAME", [row.backend_name for row in rows]),
        Column("INSTALLED", [_content(row.installed_version, row.installed_digest) for row in rows]),
        Column("AVAILABLE", [_content(row.available_version, row.available_digest) for row in rows]),
        Column("DIFFERENT ON", [some_of([node.node_name for node in row.node_drift]) for row in rows]),
    ]
    return Group(
        fitting(columns, output),
        Text("\nupgrade one with: remuda backends upgrade NAME; all with: --all-backends"),
    )


def known_bad(bad: BadVersionItem) -> str:
    """Why something newer is not offered."""
    called = " ".join(filter(None, (bad.version, bad.digest[:_DIGEST_CHARS])))
    return (
        f"not offered: version {called} of {bad.backend_name} failed to start on {bad.node_name} at "
        f"{local(bad.failed_at)}: {bad.reason}; to try it again: remuda backends upgrade --force "
        f"{pasted(bad.backend_name)}"
    )


def age_lines(reply: UpgradesReply) -> list[str]:
    """What is up to date, and how old that answer is: for each gallery and registry, where they differ."""
    lines = [] if reply.upgrades else [_verdict(reply)]
    ages = {one.source: _checked_ago(one.age_s) for one in reply.checked}
    again = "" if all(one.age_s < _JUST_NOW_S for one in reply.checked) else "; ask again with --check"
    if len(set(ages.values())) > 1:
        lines += [f"{source}: checked {age}" for source, age in ages.items()]
        return [*lines, "ask again with --check"] if again else lines
    if ages:
        age = f"checked {next(iter(ages.values()))}{again}"
        return [f"{lines[0]} ({age})"] if lines else [age]
    return lines


def _verdict(reply: UpgradesReply) -> str:
    if reply.unchecked:
        return NOT_ALL_CHECKED
    if not reply.checked:
        return "no installed backend comes from a gallery or registry: there is nothing to check"
    return "nothing else is newer" if reply.known_bad else UP_TO_DATE


def _checked_ago(age_s: float) -> str:
    return "just now" if age_s < _JUST_NOW_S else f"{span(timedelta(seconds=age_s))} ago"


def wanted_of(items: Sequence[BackendItem], words: Sequence[str], *, builds: bool) -> list[BackendItem]:
    """Those whose name, tags or description have all words. Builds of a meta backend only if wanted."""
    inner = {build for item in items if item.isMeta for build in item.capabilities.values()}
    return [item for item in items if _has_all(item, words) and (builds or item.name not in inner)]


def some_of(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMES_MAX
    shown = ", ".join(map(one_line, names[:_NAMES_MAX]))
    return (f"{shown} and {more} more" if more > 0 else shown) or UNKNOWN


def short_digest(digest: str) -> str:
    return digest[:_DIGEST_CHARS] or UNKNOWN


def _by_content(nodes: Sequence[NodeHolding]) -> list[tuple[tuple[str, str], list[NodeHolding]]]:
    """What most nodes have comes first."""
    groups = defaultdict[tuple[str, str], list[NodeHolding]](list)
    for node in nodes:
        groups[node.version, node.digest].append(node)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def _news(upgrade: UpgradeItem | None, item: BackendItem, nodes: Sequence[NodeHolding]) -> str:
    unstarted = [node.node_name for node in nodes if node.start_error]
    notes = [f"does not start on {some_of(unstarted)}"] if unstarted else []
    return ", ".join(notes + _upgrade_news(upgrade, item, nodes)) or UNKNOWN


def _upgrade_news(upgrade: UpgradeItem | None, item: BackendItem, nodes: Sequence[NodeHolding]) -> list[str]:
    if upgrade is None:
        return []
    drifted = {node.node_id for node in upgrade.node_drift}
    parts = [_difference(item, nodes)] if drifted.intersection(node.node_id for node in nodes) else []
    available = upgrade.available_version or upgrade.available_digest[:_DIGEST_CHARS]
    return parts + ([f"{available} is available"] if available and not _all_have(upgrade, nodes) else [])


def _difference(item: BackendItem, nodes: Sequence[NodeHolding]) -> str:
    """Where no version is on more nodes than this one, there is no majority to differ from."""
    groups = [group for _, group in _by_content(item.nodes or ())]
    if len(groups[0]) > len(nodes):
        return "differs from most"
    others = [node.node_name for group in groups if group != nodes for node in group]
    return f"differs from {some_of(others)}"


def _all_have(upgrade: UpgradeItem, nodes: Sequence[NodeHolding]) -> bool:
    """Whether what is available is what these nodes have."""
    if upgrade.available_version:
        return all(node.version == upgrade.available_version for node in nodes)
    return all(node.digest == upgrade.available_digest for node in nodes)


def _content(version: str, digest: str) -> str:
    return " ".join(filter(None, (version, digest[:_DIGEST_CHARS]))) or UNKNOWN


def _fitting(names: Sequence[str], fleet: int) -> str:
    if fleet and len(names) == fleet:
        return f"all {fleet}" if fleet > 1 else names[0]
    return some_of(names) if names else "none"


def _installed(item: BackendItem) -> str:
    return some_of([node.node_name for node in item.nodes or ()])


def _has_all(item: BackendItem, words: Sequence[str]) -> bool:
    text = " ".join((item.name, *item.tags, item.description)).lower()
    return all(word.lower() in text for word in words)


def _first_sentence(text: str) -> str:
    return text.strip().partition("\n")[0].partition(". ")[0]
