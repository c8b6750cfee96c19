"""Finds what a person meant by a name, an id, or the beginning of an id. Pure."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from remuda.core.close_matches import did_you_mean
from remuda.core.errors import Invalid, NotFound

_SHOWN_MAX = 5


class Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def pick(kind: str, things: Sequence[N], wanted: str) -> N:
    """The one that `wanted` names: a name comes before an id, an id before the beginning of one.

    NotFound with the nearest names; Invalid when several ids begin so.
    """
    exact = [thing for thing in things if thing.name == wanted] or [
        thing for thing in things if thing.id == wanted
    ]
    if exact:
        return exact[0]
    found = [thing for thing in things if wanted and thing.id.startswith(wanted)]
    if not found:
        raise NotFound(f"there is no {kind} {wanted!r}", hint=_hint(kind, things, wanted))
    if len(found) > 1:
        names = _listed([f"{thing.name} ({thing.id})" for thing in found])
        raise Invalid(f"{wanted!r} matches {len(found)} {kind} ids", hint=f"say which: {names}")
    return found[0]


def _hint(kind: str, things: Sequence[Named], wanted: str) -> str:
    names = [thing.name for thing in things]
    if not names:
        return f"there are no {kind}s"
    return did_you_mean(wanted, names, f"there are: {_listed(names)}")


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _SHOWN_MAX
    return ", ".join(words[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
