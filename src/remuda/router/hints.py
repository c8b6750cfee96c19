"""Where a request would rather go, or rather not: nodes by name or label. Hints only decide between replicas
that have room, and where a model is loaded that has none. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from remuda.core.errors import Invalid
from remuda.router.table import Route
from remuda.scheduler.ranking import NodeWishes

HINTS_MAX: Final = 16

# Why a request went to its replica.
PREFERRED: Final = "the request prefers this node"
SPARED: Final = "the request would rather avoid other nodes that have a replica"
AVOIDED: Final = "the request would rather avoid this node, but no other had a replica with room"


@dataclass(frozen=True, slots=True)
class RoutingHints(NodeWishes):
    """Names of nodes, and labels as `key=value`."""

    def tiers(self, routes: Sequence[Route]) -> Iterator[tuple[Sequence[Route], str]]:
        """The replicas, those to be tried first in front, with why one of them would be chosen; empty: for
        none of the hints. What is both preferred and avoided is avoided."""
        avoided = [route for route in routes if _meant(route, self.avoid)]
        others = [route for route in routes if route not in avoided]
        preferred = [route for route in others if _meant(route, self.prefer)]
        yield preferred, PREFERRED
        yield [route for route in others if route not in preferred], SPARED if avoided else ""
        yield avoided, AVOIDED


def _meant(route: Route, named: frozenset[str]) -> bool:
    return route.node_name in named or not named.isdisjoint(route.labels)


def hints_of(prefer: str, avoid: str) -> RoutingHints:
    """From lists with commas. Invalid for one that is too long."""
    return RoutingHints(_listed(prefer, "X-Remuda-Prefer"), _listed(avoid, "X-Remuda-Avoid"))


def _listed(text: str, header: str) -> frozenset[str]:
    named = frozenset(filter(None, (one.strip() for one in text.split(","))))
    if len(named) > HINTS_MAX:
        raise Invalid(f"{header} names {len(named)} nodes and labels; at most {HINTS_MAX} are taken")
    return named
