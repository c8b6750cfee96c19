"""One line per inference request, written in microseconds: structlog takes longer than everything else that
is done for a request. For people at a terminal it is structlog that writes it."""

import asyncio
import logging
from datetime import datetime

import msgspec
import structlog

from remuda.core.clock import Clock
from remuda.gateway.openai.client_response import ClientResponse

_EVENT = "inference_answered"
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

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        settings = structlog.get_config()
        self._as_json = isinstance(settings["processors"][-1], structlog.processors.JSONRenderer)
        self._write = settings["logger_factory"]().msg
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []  # Of this turn of the event loop, after which they are written at once.
        self._enabled = log.bind().is_enabled_for(logging.INFO)

    def answered(self, response: ClientResponse, ended_s: float) -> None:
        if not self._enabled:
            return
        line = _line(response, ended_s, self._clock.now())
        if self._as_json:
            if not self._lines:
                asyncio.get_running_loop().call_soon(self._write_lines)
            self._lines.append(self._encode(line))
            return
        said = msgspec.structs.asdict(line)
        for added_by_structlog in ("event", "level", "timestamp"):
            del said[added_by_structlog]
        log.info(_EVENT, **said)

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
