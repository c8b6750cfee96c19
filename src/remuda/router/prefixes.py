"""Which replica has seen the beginning of a prompt before, and so need not read it again. Pure: the time is
an argument.

A prompt is cut into windows, and the hash of each covers all before it, so that one number stands for a whole
beginning. A tree of prompts is then, for each replica, a table of the numbers that it has seen.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from xxhash import xxh64_intdigest

from remuda.inference.requests import ChatRequest, CompletionRequest
from remuda.router.table import RouteId

WINDOW_BYTES: Final = 256
WINDOWS_MAX: Final = 64
_TEXT_BYTES_MAX: Final = WINDOW_BYTES * WINDOWS_MAX
LIVES_S: Final = 300.0  # So long after it was seen last, a beginning counts as cached.
_HALF_LIFE_S: Final = 120.0  # Of how much a replica is taken to have in its cache.
_BEGINNINGS_MAX: Final = 20_000  # Of one replica.

Chain = Sequence[int]


def chain(model: str, text: bytes) -> tuple[int, ...]:
    """The hash of each window, with those before it; equal on every frontend. What fills no window at the end
    counts as one."""
    last = xxh64_intdigest(model.encode())
    hashes = list[int]()
    for start in range(0, min(len(text), _TEXT_BYTES_MAX), WINDOW_BYTES):
        last = xxh64_intdigest(last.to_bytes(8, "little") + text[start : start + WINDOW_BYTES])
        hashes.append(last)
    return tuple(hashes)


def prompt_text(request: object) -> bytes:
    """As much of a request's text as is hashed; empty where there is none."""
    if isinstance(request, ChatRequest):
        parts, size = list[str](), 0
        for message in request.messages:
            content = message.content
            for text in (message.role, "\n", *_texts(content), "\n"):
                parts.append(text)
                size += len(text)
            if size >= _TEXT_BYTES_MAX:
                break
        return "".join(parts)[:_TEXT_BYTES_MAX].encode("utf-8", "replace")[:_TEXT_BYTES_MAX]
    if isinstance(request, CompletionRequest) and isinstance(request.prompt, str):
        return request.prompt[:_TEXT_BYTES_MAX].encode("utf-8", "replace")[:_TEXT_BYTES_MAX]
    return b""


def _texts(content: object) -> Sequence[str]:
    if isinstance(content, str):
        return (content,)
    if isinstance(content, list):
        return [text for part in content if isinstance(text := getattr(part, "text", None), str)]
    return ()


class PrefixTree:
    """Of one model. What a replica has seen is never forgotten later than what it is the beginning of."""

    def __init__(self, lives_s: float = LIVES_S) -> None:
        self._lives_s = lives_s
        self._seen: dict[RouteId, dict[int, float]] = {}  # When each beginning is forgotten.
        self._weights: dict[RouteId, tuple[float, float]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._seen.values()))

    def match(self, windows: Chain, routes: Sequence[RouteId], now_s: float) -> list[int]:
        """How many windows of it each of these replicas has seen, from the first on."""
        seen = self._seen
        return [_longest(seen[route], windows, now_s) if route in seen else 0 for route in routes]

    def observe(self, windows: Chain, route: RouteId, now_s: float) -> bool:
        """This replica has this prompt in its cache now. Whether that is news to others: it is where they
        would forget it in less than half the time."""
        if not windows:
            return False
        own = self._seen.get(route)
        if own is None:
            own = self._seen[route] = {}
        elif own.get(windows[-1], 0.0) >= now_s + self._lives_s / 2:
            return False
        before = len(own)
        own.update(dict.fromkeys(windows, now_s + self._lives_s))
        self._weights[route] = (self.weight(route, now_s) + len(own) - before, now_s)
        if len(own) > _BEGINNINGS_MAX:
            # Those that are forgotten first; of equals the later part of a prompt.
            kept = sorted(own.items(), key=lambda one: one[1], reverse=True)[: _BEGINNINGS_MAX // 2]
            self._seen[route] = dict(kept)
        return True

    def weight(self, route: RouteId, now_s: float) -> float:
        """How many windows were new to it lately: half as many after each half-life."""
        weight, at_s = self._weights.get(route, (0.0, now_s))
        return weight * 0.5 ** (max(now_s - at_s, 0.0) / _HALF_LIFE_S) if weight else 0.0

    def keep(self, routes: Collection[RouteId], now_s: float) -> None:
        """Forget replicas that are no more, and what is too old."""
        kept = dict[RouteId, dict[int, float]]()
        for route, own in self._seen.items():
            alive = {one: until_s for one, until_s in own.items() if until_s > now_s}
            if alive and route in routes:
                kept[route] = alive
        self._seen = kept
        self._weights = {route: one for route, one in self._weights.items() if route in routes}


def _longest(own: Mapping[int, float], windows: Chain, now_s: float) -> int:
    """By halving: what has seen a window has seen all before it."""
    least, most = 0, len(windows)
    while least < most:
        middle = (least + most + 1) // 2
        if own.get(windows[middle - 1], 0.0) > now_s:
            least = middle
        else:
            most = middle - 1
    return least
