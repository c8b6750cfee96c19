"""Which name somebody may have meant who gave one that nothing has. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

_NAMES_COMPARED_MAX: Final = 1000
_CHARS_COMPARED_MAX: Final = 100
_TOLD_MAX: Final = 3


def near_names(wanted: str, names: Iterable[str]) -> list[str]:
    """A few, the likeliest first: those that begin so, then those that are spelled alike. Case is nothing."""
    folded = {name.casefold(): name for name in islice(names, _NAMES_COMPARED_MAX)}
    sought = wanted[:_CHARS_COMPARED_MAX].casefold()
    longer = sorted(name for name in folded if sought and name.startswith(sought))
    alike = get_close_matches(sought, folded, n=_TOLD_MAX)
    return [folded[name] for name in dict.fromkeys((*longer, *alike))][:_TOLD_MAX]


def did_you_mean(wanted: str, names: Iterable[str], otherwise: str = "") -> str:
    """A hint with the near names, or what to say instead where there are none."""
    near = near_names(wanted, names)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
