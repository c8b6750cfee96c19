"""What was seen of gateways, and how it is told: medians over rounds, and ratios within each round, for the
speed of a machine varies from one minute to the next."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

NAN: Final = float("nan")
BASE_AIM_MB: Final = 120.0
AIMS: Final = {"remuda-http": (4.0, 2.0), "remuda-grpc": (7.0, 2.0)}  # Times nginx: a request, a token.
DIRECT, NGINX = "direct", "nginx"
KEYED: Final = "remuda-keys"  # As remuda-http, but asks for keys.
LIMITED: Final = "remuda-limits"  # As remuda-keys, with a key that has every limit.
LIMITS_AIM: Final = 1.15


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one gateway in one round; NaN: not measured. Memory is proportional (PSS), but for `rss`."""

    p50_us: float
    p99_us: float
    request_us: float = NAN  # CPU time.
    token_us: float = NAN  # CPU time.
    rest_mb: float = NAN
    rest_rss_mb: float = NAN
    after_mb: float = NAN
    stream_kb: float = NAN
    rest_cpu_percent: float = NAN  # Of one core.
    rest_bus_cpu_percent: float = NAN


Seen = Mapping[str, Sequence[Figures]]  # By gateway, a value for each round.
_COLUMNS: Final = (
    "us/request",
    "x nginx",
    "us/token",
    "x nginx",
    "p50 +us",
    "p99 +us",
    "MB rest",
    "MB after",
    "KB/stream",
    "CPU% rest",
)


def table(seen: Seen) -> str:
    """For people."""
    rows = [["", *_COLUMNS], *([name, *_cells(seen, name)] for name in seen if name != DIRECT)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    direct = _medians(seen[DIRECT])
    lines.append(f"without a gateway: p50 {direct.p50_us:.0f} us, p99 {direct.p99_us:.0f} us")
    return "\n".join([*lines, *_ours(seen)])


def document(seen: Seen) -> dict[str, object]:
    """For programs: the same figures; what was not measured is null."""
    told: dict[str, object] = {}
    for name, rounds in seen.items():
        medians = {field.name: _known(getattr(_medians(rounds), field.name)) for field in fields(Figures)}
        others = {other: _ratios(seen, name, other) for other in seen if other not in (name, DIRECT)}
        told[name] = {**medians, "added": _added(seen, name), "ratio_to": others}
    return told


def _cells(seen: Seen, name: str) -> list[str]:
    own = _medians(seen[name])
    request, token = (_ratio(seen, name, NGINX, cost) for cost in (_request, _token))
    added = _added(seen, name)
    return [
        f"{own.request_us:.1f}",
        f"{request:.2f}",
        f"{own.token_us:.1f}",
        f"{token:.2f}",
        f"{added['p50_us']:.0f}",
        f"{added['p99_us']:.0f}",
        f"{own.rest_mb:.1f}",
        f"{own.after_mb:.1f}",
        f"{own.stream_kb:.1f}",
        f"{own.rest_cpu_percent:.1f}",
    ]


def _ours(seen: Seen) -> list[str]:
    """What was aimed at, what the nats-server does meanwhile, and how others compare."""
    lines = []
    for name, (request_aim, token_aim) in AIMS.items():
        if name not in seen:
            continue
        own = _medians(seen[name])
        request, token = (_ratio(seen, name, NGINX, cost) for cost in (_request, _token))
        lines.append(
            f"{name}: {request:.2f} times nginx for a request (aim {request_aim:g}), {token:.2f} for a token "
            f"(aim {token_aim:g}); {own.rest_rss_mb:.0f} MB resident at rest (aim {BASE_AIM_MB:.0f})"
        )
        lines.append(f"  its nats-server, not counted: {own.rest_bus_cpu_percent:.1f}% of a core at rest")
        for other in seen:
            if other not in (DIRECT, NGINX, *AIMS):
                request, token = (_ratio(seen, name, other, cost) for cost in (_request, _token))
                lines.append(f"  {request:.3f} times {other} for a request, {token:.3f} for a token")
    if KEYED in seen and LIMITED in seen:
        request, token = (_ratio(seen, LIMITED, KEYED, cost) for cost in (_request, _token))
        lines.append(
            f"{LIMITED}: {request:.3f} times {KEYED} for a request, {token:.3f} for a token "
            f"(aim {LIMITS_AIM:g})"
        )
    return lines


def _medians(rounds: Sequence[Figures]) -> Figures:
    return Figures(
        *(statistics.median(getattr(each, field.name) for each in rounds) for field in fields(Figures))
    )


def _ratios(seen: Seen, name: str, other: str) -> dict[str, float | None]:
    costs = {"request": _request, "token": _token}
    return {what: _known(_ratio(seen, name, other, cost)) for what, cost in costs.items()}


def _ratio(seen: Seen, name: str, other: str, cost: Callable[[Figures], float]) -> float:
    pairs = zip(seen[name], seen.get(other, ()), strict=False)
    return statistics.median([cost(own) / cost(theirs) for own, theirs in pairs] or [NAN])


def _added(seen: Seen, name: str) -> dict[str, float]:
    pairs = list(zip(seen[name], seen[DIRECT], strict=True))
    return {
        "p50_us": statistics.median(own.p50_us - direct.p50_us for own, direct in pairs),
        "p99_us": statistics.median(own.p99_us - direct.p99_us for own, direct in pairs),
    }


def _request(figures: Figures) -> float:
    return figures.request_us


def _token(figures: Figures) -> float:
    return figures.token_us


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)
