"""What is recorded of each inference request that is over: one log line, Prometheus figures
(docs/reference/metrics.md), what its key used, and by what it was routed, so that it can be explained.

The line is written in microseconds: structlog takes longer than everything else that is done for a
request; it writes only for people at a terminal. Only models that are configured become labels of
figures: what a stranger asks for does not.
"""

import asyncio
import logging
from collections import Counter as Tallied
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Final

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from remuda.accounts.usage import UsageCounter
from remuda.gateway.client_response import ClientResponse
from remuda.router.chooser import PrefixFigures
from remuda.router.decisions import RoutingDecision
from remuda.router.dispatch import IDLE, LEAST_LOADED, ONLY
from remuda.router.live_table import Tables
from remuda.router.usage import RequestLedger
from remuda.scheduler.measured_speed import AnswerTimed, not_timed

_EVENT = "inference_answered"
LISTED: Final = "it was the first with room in the order of the model's `upstreams`"
_BY_LOAD: Final = frozenset({IDLE, LEAST_LOADED, ONLY})
_MESSAGE_CHARS_MAX: Final = 500
log = structlog.get_logger()


class RequestLogLine(msgspec.Struct):
    """In the order in which structlog's JSON has it. Nothing in it is a secret or a client's free text."""

    request_id: str
    caller: str
    kind: str
    model: str
    node: str
    status: int
    stream: bool
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float | None
    total_ms: float
    waited_ms: float
    error: str
    event: str
    level: str
    timestamp: datetime


class RequestLog:
    """Made after logging was set up: it follows the format, the level and the stream of that moment."""

    def __init__(self) -> None:
        settings = structlog.get_config()
        self._as_json = isinstance(settings["processors"][-1], structlog.processors.JSONRenderer)
        self._write = settings["logger_factory"]().msg
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []  # Of this turn of the event loop, after which they are written at once.
        self._enabled = log.bind().is_enabled_for(logging.INFO)

    def answered(self, response: ClientResponse, ended_s: float, ended_at: datetime) -> None:
        if not self._enabled:
            return
        line = _line(response, ended_s, ended_at)
        if self._as_json:
            if not self._lines:
                asyncio.get_running_loop().call_soon(self._write_lines)
            self._lines.append(self._encode(line))
            return
        fields = msgspec.structs.asdict(line)
        for added_by_structlog in ("event", "level", "timestamp"):
            del fields[added_by_structlog]
        log.info(_EVENT, **fields)

    def _write_lines(self) -> None:
        lines, self._lines = self._lines, []
        self._write(b"\n".join(lines).decode())


def _line(response: ClientResponse, ended_s: float, now: datetime) -> RequestLogLine:
    tally, routing, began_s = response.tally, response.routing, response.began_s
    first_s = tally.first_token_s
    return RequestLogLine(
        response.request_id,
        response.caller,
        response.kind,
        response.model,
        "" if routing.route is None else routing.route.node_name,
        response.status,
        response.stream,
        tally.prompt_tokens,
        tally.completion_tokens,
        None if first_s is None else _ms(first_s - began_s),
        _ms(ended_s - began_s),
        _ms(routing.waited_s),
        response.error,
        _EVENT,
        "info",
        now,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 100_000) / 100  # Ten times as fast as rounding to two places.


def note_usage(usage: UsageCounter, response: ClientResponse, ended_at: datetime) -> None:
    """Count a request that is over, and named a model: not one that was answered without it."""
    route, tally = response.routing.route, response.tally
    if not response.model or (route is None and response.status < 400):
        return
    usage.note(
        ended_at.date(),
        response.key_id,
        response.model,
        "" if route is None else route.node_name,
        (tally.prompt_tokens, tally.completion_tokens),
        failed=response.status >= 400,
        costs=tally.costs,
    )


def decision_of(response: ClientResponse, ended_s: float) -> RoutingDecision:
    """Made for each request: takes a microsecond or two."""
    routing, message = response.routing, response.error_message
    failed: tuple[tuple[str, str, str], ...] = ()
    if routing.failures:
        # What broke off in the middle of its answer counts, too.
        failed = tuple(
            (one.node_name, str(one.key), why.public[:_MESSAGE_CHARS_MAX])
            for one, why in zip(routing.tried, routing.failures, strict=False)
        )
    return RoutingDecision(
        response.request_id,
        response.began_s,
        ended_s,
        response.model,
        response.caller,
        response.status,
        response.error,
        message[:_MESSAGE_CHARS_MAX] if message else "",
        routing.route,
        _why(response),
        routing.waited_s,
        routing.waits or (),
        failed,
        routing.reloaded,
        response.tally.first_token_s,
    )


def _why(response: ClientResponse) -> str:
    """A model of one's own that servers alone answer for lists them: their load does not decide. A server's
    own model is called by the server's name."""
    route, why = response.routing.route, response.routing.why
    if route is None or not route.server or why not in _BY_LOAD:
        return why
    return why if response.model.startswith(f"{route.server}/") else LISTED


_FIRST_TOKEN_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PER_TOKEN_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)


class InferenceFigures:
    """What is counted for each request is added to plain numbers, and becomes Prometheus' when it is asked
    for: its own counters cost ten times as much. Children of labels are looked up once."""

    def __init__(
        self,
        registry: CollectorRegistry,
        tables: Tables,
        ledger: RequestLedger,
        timed: AnswerTimed = not_timed,
    ) -> None:
        self._timed = timed
        self._requests = _Counter(
            "remuda_inference_requests", "Inference requests answered.", ("model", "node", "kind", "status")
        )
        self._tokens = _Counter(
            "remuda_inference_tokens", "Tokens read and written.", ("model", "node", "type")
        )
        registry.register(self._requests)
        registry.register(self._tokens)
        self._first_token = Histogram(
            "remuda_inference_time_to_first_token_seconds",
            "From the request to the first token of a stream.",
            ["model", "node"],
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self._per_token = Histogram(
            "remuda_inference_time_per_token_seconds",
            "Between the tokens of one answer, on average.",
            ["model", "node"],
            buckets=_PER_TOKEN_S,
            registry=registry,
        )
        self._waiting = Gauge(
            "remuda_inference_waiting",
            "Requests that wait for a replica.",
            ["model"],
            registry=registry,
        )
        registry.register(_InFlight(tables, ledger))
        self._first_token_of = cache(self._first_token.labels)
        self._per_token_of = cache(self._per_token.labels)

    def waiting_changed(self, model: str, by: int) -> None:
        """Implements router.dispatch.WaitingFigures."""
        self._waiting.labels(model).inc(by)

    def tokens_written(self) -> Tallied[str]:
        """By requests that are over, by the name of the node."""
        written = Tallied[str]()
        for (_, node, kind), count in self._tokens.by_labels.items():
            if kind == "completion" and node:
                written[str(node)] += count
        return written

    def answered(self, response: ClientResponse, ended_s: float) -> None:
        """One request is over."""
        model, tally, route = response.model, response.tally, response.routing.route
        node = "" if route is None else route.node_name
        self._requests.by_labels[model, node, response.kind, response.status] += 1
        if tally.prompt_tokens:
            self._tokens.by_labels[model, node, "prompt"] += tally.prompt_tokens
        if tally.completion_tokens:
            self._tokens.by_labels[model, node, "completion"] += tally.completion_tokens
        first_s = tally.first_token_s
        if first_s is None or not response.stream:
            return
        self._first_token_of(model, node).observe(first_s - response.began_s)
        if tally.completion_tokens > 1:
            last_s = ended_s if tally.last_token_s is None else tally.last_token_s
            later = tally.completion_tokens - 1
            self._per_token_of(model, node).observe((last_s - first_s) / later)
            if route is not None and not route.server:
                self._timed(route.node, model, later, last_s - first_s)


class _Counter(Collector):
    def __init__(self, name: str, words: str, labels: Sequence[str]) -> None:
        self._name = name
        self._words = words
        self._labels = labels
        self.by_labels: defaultdict[tuple[str | int, ...], int] = defaultdict(int)

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._words, labels=self._labels)
        for labels, count in self.by_labels.items():
            family.add_metric([str(label) for label in labels], count)
        yield family


class PrefixMetrics(Collector):
    """How well requests with the same beginning are kept together; read when it is asked for."""

    def __init__(self, figures: PrefixFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        figures = self._figures
        windows = CounterMetricFamily(
            "remuda_inference_prefix_windows_total",
            "Windows of 256 bytes of prompts that are routed by their beginning.",
            labels=["model", "cached"],
        )
        guarded = CounterMetricFamily(
            "remuda_inference_prefix_busy_total",
            "Requests whose beginning was cached by a replica that was too busy.",
            labels=["model"],
        )
        for model, count in figures.windows.items():
            matched = figures.matched[model]
            windows.add_metric([model, "yes"], matched)
            windows.add_metric([model, "no"], count - matched)
            guarded.add_metric([model], figures.guarded[model])
        yield windows
        yield guarded


class _InFlight(Collector):
    """Read off the ledger when it is asked for."""

    def __init__(self, tables: Tables, ledger: RequestLedger) -> None:
        self._tables = tables
        self._ledger = ledger

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "remuda_inference_in_flight", "Requests that a replica works on.", labels=["model", "node"]
        )
        for (model, node), count in self._counted().items():
            family.add_metric([model, node], count)
        yield family

    def _counted(self) -> Tallied[tuple[str, str]]:
        counted: Tallied[tuple[str, str]] = Tallied()
        for key, count in self._ledger.own().items():
            entry = self._tables.now.models.get(key.model)
            routes = () if entry is None else entry.routes
            node = next((route.node_name for route in routes if route.key == key), "")
            counted[key.model, node] += count
        return counted
