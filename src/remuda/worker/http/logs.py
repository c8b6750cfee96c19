"""Logs of backends over HTTP: which models have some, their newest lines, and live lines on a WebSocket.

GET /v1/backend-logs
GET /v1/backend-logs/{model or process key}?stream=stderr&tail=20
GET /v1/backend-logs/{model or process key}/ws
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import anyio

from remuda.core.errors import Forbidden, Invalid, NotFound
from remuda.wire.codec import rfc3339
from remuda.worker.http.server import (
    JSON,
    AsgiReceive,
    AsgiSend,
    Scope,
    answer,
    header,
    raw_path,
    refuse,
    refuse_method,
)
from remuda.worker.processes.log_store import OutputLine, OutputStream
from remuda.worker.processes.logs import ProcessLogs

_ROOT: Final = "/v1/backend-logs"
_LIVE: Final = "/ws"
_QUERY_FIELDS_MAX: Final = 20
_DIGITS_MAX: Final = 9


class LogPages:
    def __init__(self, logs: ProcessLogs) -> None:
        self._logs = logs

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        below = raw_path(scope).removeprefix(_ROOT)
        live = below.endswith(_LIVE)
        name = unquote(below.removesuffix(_LIVE))[1:]
        if scope["type"] == "websocket":
            await (self._live(name, scope, receive, send) if live and name else _not_found(scope, send))
        elif scope["method"] != "GET":
            await refuse_method(scope, send, b"GET")
        elif live:
            await refuse(scope, send, Invalid("this path is for WebSockets"))
        elif not below:
            await answer(scope, send, 200, json.dumps(self._logs.models()), JSON)
        elif name and below.startswith("/"):
            await self._lines(name, scope, send)
        else:
            await _not_found(scope, send)

    async def _lines(self, name: str, scope: Scope, send: AsgiSend) -> None:
        try:
            lines = _selected(self._logs.lines(name), scope["query_string"])
        except Invalid as error:
            await refuse(scope, send, error)
        else:
            await answer(scope, send, 200, _dumped([_view(line) for line in lines]), JSON)

    async def _live(self, name: str, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        if not _same_origin(scope):
            await refuse(scope, send, Forbidden("requests from other web origins are refused"))
            return
        with self._logs.follow(name) as new_lines:
            known = self._logs.lines(name)  # No await in between: none is missed and none comes twice.
            await send({"type": "websocket.accept"})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                with suppress(OSError):  # It left, unnoticed so far.
                    await _tell(send, {"type": "initial", "lines": [_view(line) for line in known]})
                    async for line in new_lines:
                        await _tell(send, {"type": "line", "line": _view(line)})
                tasks.cancel_scope.cancel()


async def _until_gone(receive: AsgiReceive, scope: anyio.CancelScope) -> None:
    """What a reader says is of no interest, but that it leaves."""
    while (await receive())["type"] != "websocket.disconnect":
        pass
    scope.cancel()


async def _tell(send: AsgiSend, frame: object) -> None:
    await send({"type": "websocket.send", "text": _dumped(frame)})


async def _not_found(scope: Scope, send: AsgiSend) -> None:
    await refuse(scope, send, NotFound("not found"))


def _view(line: OutputLine) -> dict[str, str | bool]:
    view: dict[str, str | bool] = {
        "timestamp": rfc3339(line.timestamp),
        "stream": line.stream,
        "text": line.text,
    }
    return {**view, "approximate": True} if line.approximate else view


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _selected(lines: Sequence[OutputLine], query: bytes) -> Sequence[OutputLine]:
    """Additive to the contract: only one stream, only the last lines. Other fields are not looked at."""
    try:
        fields = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError:
        raise Invalid("the query has too many fields") from None
    if (stream := fields.get("stream", [None])[-1]) is not None:
        if stream not in set(OutputStream):
            raise Invalid("stream must be stdout or stderr")
        lines = [line for line in lines if line.stream == stream]
    if (tail := fields.get("tail", [None])[-1]) is not None:
        if not (tail.isascii() and tail.isdigit()) or len(tail) > _DIGITS_MAX:
            raise Invalid("tail must be a number of lines")
        lines = lines[max(0, len(lines) - int(tail)) :]
    return lines


def _same_origin(scope: Scope) -> bool:
    """Browsers say where a page came from; other callers say nothing."""
    origin = header(scope, b"origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin.decode("latin-1")).netloc == (header(scope, b"host") or b"").decode("latin-1")
    except ValueError:
        return False
