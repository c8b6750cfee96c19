"""Prometheus metrics of a frontend. Each is named in docs/reference/metrics.md."""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from remuda.fleet.health import NodeStatus, Standing
from remuda.ops.model import Kind, Operation, State

_LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """A registry of its own: two frontends in one process do not share figures."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self.ops = OpFigures(self.registry)
        self._requests = Counter(
            "remuda_http_requests",
            "HTTP requests answered.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "remuda_http_request_seconds",
            "Time to answer.",
            ["method", "route"],
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._nodes = Gauge("remuda_nodes", "Nodes by status.", ["status"], registry=self.registry)
        self._store_up = Gauge("remuda_store_up", "1 while the database answers.", registry=self.registry)
        self._bus_up = Gauge("remuda_bus_up", "1 while the bus answers.", registry=self.registry)
        Gauge("remuda_build_info", "The running version.", ["version"], registry=self.registry).labels(
            version
        ).set(1)

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def fleet_seen(self, standings: Iterable[Standing]) -> None:
        tally = Tally(standing.status for standing in standings)
        for status in NodeStatus:
            self._nodes.labels(status.value).set(tally[status])

    def links_seen(self, *, store: bool, bus: bool) -> None:
        self._store_up.set(store)
        self._bus_up.set(bus)

    def rendered(self) -> bytes:
        return generate_latest(self.registry)


class OpFigures:
    """Implements ops.ports.Figures."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._submitted = Counter(
            "remuda_operations_submitted",
            "Operations on backends that were asked for here.",
            ["kind"],
            registry=registry,
        )
        self._live = Gauge(
            "remuda_operations_live", "Operations that are not over.", ["kind"], registry=registry
        )
        self._attempts = Counter(
            "remuda_operation_attempts", "Attempts that were begun from here.", ["kind"], registry=registry
        )
        self._ended = Counter(
            "remuda_operation_steps_ended",
            "Shares of nodes that are over.",
            ["kind", "outcome"],
            registry=registry,
        )
        for kind in Kind:
            self._live.labels(kind.value).set(0)

    def submitted(self, kind: Kind) -> None:
        self._submitted.labels(kind.value).inc()

    def looked_at(self, live: Sequence[Operation]) -> None:
        tally = Tally(operation.kind for operation in live)
        for kind in Kind:
            self._live.labels(kind.value).set(tally[kind])

    def attempted(self, kind: Kind) -> None:
        self._attempts.labels(kind.value).inc()

    def ended(self, kind: Kind, outcome: State) -> None:
        self._ended.labels(kind.value, outcome.value).inc()
