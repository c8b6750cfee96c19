"""Which of a model's replicas answers next. Pure."""

from collections.abc import Callable, Sequence

from remuda.router.table import Route


def choose(
    routes: Sequence[Route], in_flight: Callable[[Route], int], last_turn: Callable[[Route], int]
) -> Route | None:
    """The least loaded that has room; among equals the one whose last turn is longest ago, then the one with
    more free memory. A replica on an overdue node comes after all others."""
    best: Route | None = None
    best_rank: tuple[bool, int, int, int, str, int] | None = None
    for route in routes:
        load = in_flight(route)
        if route.parallel and load >= route.parallel:
            continue
        if len(routes) == 1:
            return route
        rank = (route.silent, load, last_turn(route), -route.vram_free, route.node, route.key.index)
        if best_rank is None or rank < best_rank:
            best, best_rank = route, rank
    return best
