"""Words for hints: close matches for an unknown name, and names that peers chose, quoted in commands that
people may paste into a shell. Pure.

Matches are found by pairs of letters, which takes time in proportion to the length of the names: a client
decides how long a name is, and comparing each letter with each other would hold up all requests for
seconds.
"""

import shlex
from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Final

_NAMES_COMPARED_MAX: Final = 1000
_CHARS_COMPARED_MAX: Final = 100
_TOLD_MAX: Final = 3
_LIKENESS_MIN: Final = 0.5  # Share of the pairs of letters that two names have in common.


def near_names(wanted: str, names: Iterable[str]) -> list[str]:
    """A few, the likeliest first: those that begin so, then those spelled alike. Case is ignored."""
    folded = {name.casefold(): name for name in islice(names, _NAMES_COMPARED_MAX)}
    sought = wanted[:_CHARS_COMPARED_MAX].casefold()
    longer = sorted(name for name in folded if sought and name.startswith(sought))
    pairs = _pairs(sought)
    likeness = {name: _likeness(pairs, _pairs(name[:_CHARS_COMPARED_MAX])) for name in folded}
    close = [name for name in folded if likeness[name] >= _LIKENESS_MIN]
    alike = sorted(close, key=lambda name: (-likeness[name], name))
    return [folded[name] for name in dict.fromkeys((*longer, *alike))][:_TOLD_MAX]


def did_you_mean(wanted: str, names: Iterable[str], otherwise: str = "") -> str:
    """A hint with the near names, or what to say instead where there are none."""
    near = near_names(wanted, names)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def likeness(one: str, other: str) -> float:
    """From 0 to 1: the share of the pairs of letters that two names have in common. Case is ignored."""
    first, second = (name[:_CHARS_COMPARED_MAX].casefold() for name in (one, other))
    return _likeness(_pairs(first), _pairs(second))


def _pairs(name: str) -> frozenset[tuple[str, str]]:
    """With its beginning and its end, so that short names have some, too."""
    return frozenset(pairwise(f" {name} ")) if name else frozenset()


def _likeness(one: frozenset[tuple[str, str]], other: frozenset[tuple[str, str]]) -> float:
    return 2 * len(one & other) / (len(one) + len(other)) if one and other else 0.0


def pasted(name: str) -> str:
    """The name as one word of a command, whatever is in it: quoted where a shell would make more of it, on
    one line, and never taken for an option."""
    plain = "".join(char if char.isprintable() else "?" for char in name)
    return f"-- {shlex.quote(plain)}" if plain.startswith("-") else shlex.quote(plain)
