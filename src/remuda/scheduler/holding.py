"""Why replicas stay on a node that others need room on, in words. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from remuda.scheduler.eviction import SETTLING
from remuda.scheduler.model import HoldReason, Resident

_NAMED_MAX: Final = 3
_MOMENT: Final = f"{SETTLING.total_seconds():.0f} s"

# What is said of one, and of several.
_HELD: Final[Mapping[HoldReason, tuple[str, str]]] = {
    HoldReason.BUSY: ("is in use", "are in use"),
    HoldReason.NEW: (f"was loaded less than {_MOMENT} ago", f"were loaded less than {_MOMENT} ago"),
    HoldReason.COMING: ("is being loaded", "are being loaded"),
    HoldReason.LEAVING: ("is being unloaded", "are being unloaded"),
    HoldReason.PINNED: ("is pinned there", "are pinned there"),
    HoldReason.KEPT: ("is to stay loaded", "are to stay loaded"),
    HoldReason.SAME: ("is loaded there already", "are loaded there already"),
}
_UNTIL: Final[Mapping[HoldReason, tuple[str, str]]] = {
    HoldReason.BUSY: ("has answered its requests", "have answered their requests"),
    HoldReason.NEW: (f"has been loaded for {_MOMENT}", f"have been loaded for {_MOMENT}"),
    HoldReason.COMING: ("is loaded and may leave", "are loaded and may leave"),
    HoldReason.LEAVING: ("is unloaded", "are unloaded"),
}
_LETS_GO: Final[Mapping[HoldReason, str]] = {
    HoldReason.PINNED: "remuda models scale {model} --no-pin",
    HoldReason.KEPT: "remuda models scale {model} --min 0",
    HoldReason.SAME: "remuda models unload {model}",
}


def held(residents: Sequence[Resident]) -> str:
    """`a, b are in use, c was loaded less than 10 s ago`, of those that do not leave now."""
    return _told(residents, _HELD)


def until(residents: Sequence[Resident]) -> str:
    """What is waited for, of those that leave in a while."""
    return _told(residents, _UNTIL, " and ")


def kept(residents: Sequence[Resident]) -> str:
    """Of those that do not leave by waiting: who they are, and what lets the first of them go."""
    first = min(residents, key=lambda one: (-one.memory_bytes, one.key))
    assert first.hold is not None
    lets_go = _LETS_GO[first.hold].format(model=shlex.quote(first.key.model))
    return f"{held(residents)}; to let {first.key.model} go: {lets_go}"


def _told(
    residents: Sequence[Resident], words: Mapping[HoldReason, tuple[str, str]], between: str = ", "
) -> str:
    models: dict[HoldReason, set[str]] = {}
    for one in residents:
        if one.hold is not None:
            models.setdefault(one.hold, set()).add(one.key.model)
    told = [
        f"{_names(sorted(models[hold]))} {words[hold][len(models[hold]) > 1]}"
        for hold in words
        if hold in models
    ]
    return between.join(told)


def _names(models: Sequence[str]) -> str:
    more = len(models) - _NAMED_MAX
    return f"{', '.join(models[:_NAMED_MAX])} and {more} more" if more > 0 else ", ".join(models)
