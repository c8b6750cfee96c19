"""Allocates ports to processes. Computes only.

Time is an argument, by a clock that is never set: a machine may learn the date long after its start.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from remuda.core import limits
from remuda.core.errors import Unavailable
from remuda.wire.process_keys import ProcessKey


@dataclass(frozen=True, slots=True)
class _Past:
    """Who had a port last, and since when nobody has it."""

    key: ProcessKey
    released_s: float


class PortBook:
    """A port is in one hand at most. After use it rests: whoever still holds its address must meet nobody
    rather than somebody else. Then the key that had it is preferred for a while."""

    def __init__(self, first: int, last: int) -> None:
        assert 0 < first <= last, "settings are checked before"
        self._range = range(first, last + 1)
        self._held: dict[int, ProcessKey] = {}
        self._past: dict[int, _Past] = {}

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    def take(self, key: ProcessKey, now_s: float, free: Callable[[int], bool]) -> int:
        """A port that is free now. Raises Unavailable when there is none in the range."""
        for port in self._candidates(key, now_s):
            if free(port):
                self._held[port] = key
                self._past.pop(port, None)
                return port
        raise Unavailable(
            f"no port from {self._range[0]} to {self._range[-1]} is free for {key}"
            f" ({len(self._held)} held by backends, the rest resting or taken by other programs)",
            hint="stop a model on this node, or raise --grpc-max-port",
        )

    def release(self, port: int, now_s: float) -> None:
        """Its process is gone. A port that nobody holds stays as it is."""
        key = self._held.pop(port, None)
        if key is not None:
            self._past[port] = _Past(key, now_s)

    def _candidates(self, key: ProcessKey, now_s: float) -> Iterator[int]:
        """Best first: the key's own, those nobody has a claim to, unused ones, then what others had."""
        rested = sorted(
            (now_s - past.released_s, port)
            for port, past in self._past.items()
            if now_s - past.released_s >= limits.PORT_QUARANTINE_S
        )
        yield from (port for _, port in rested if self._past[port].key == key)
        others = [(rest_s, port) for rest_s, port in reversed(rested) if self._past[port].key != key]
        yield from (port for rest_s, port in others if rest_s >= limits.PORT_AFFINITY_S)
        yield from (port for port in self._range if port not in self._held and port not in self._past)
        yield from (port for rest_s, port in others if rest_s < limits.PORT_AFFINITY_S)
