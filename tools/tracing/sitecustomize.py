"""Notes which modules of remuda a Python process enters between two signals, and which because of a request.

Python imports a module of this name at its start; `tools.journeys` puts this folder on the path of the
processes it watches. Causes are followed like this:

- A request that arrives at an HTTP server is a cause, unless a worker sends it of its own accord.
- What a caused step of the event loop schedules, or wakes (a task, a timer, a thread), has the same cause.
- A task begun by a caused step is caused to its end; one that was there before only for the steps so woken.
- What is read from a connection to which the other side wrote in a caused step is caused, and so is a
  message of the bus that was published in one: it carries a header that says so.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from asyncio import base_events, events, selector_events
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

_folder = os.environ.get("TRACING_FOLDER", "")
_entered: set[str] = set()
_caused: set[str] = set()
_recorded = 0  # The number of the journey that is being recorded; 0: none.
_begun = 0
_cause: ContextVar[int] = ContextVar("cause", default=0)
_born_of: ContextVar[int] = ContextVar("born_of", default=0)
_thread = threading.local()
_UNASKED = (b"/api/node", b"/readyz", b"/healthz", b"/metrics")
_METHODS = (b"GET", b"POST", b"PUT", b"PATCH", b"DELETE")
_HEADER = "X-Journey"


def _note(frame: FrameType, event: str, _: object) -> None:
    if event != "call" or not _recorded:
        return
    name = frame.f_globals.get("__name__", "")
    if name.startswith("remuda."):
        _thread.cause = _cause.get()
        _entered.add(name)
        if _thread.cause == _recorded:
            _caused.add(name)


def _here() -> int:
    """The cause of what runs now; of a worker thread that reports its result, the cause of the work."""
    return _cause.get() or (0 if asyncio._get_running_loop() else getattr(_thread, "cause", 0))


def _run(handle: Any, run: Callable[[], None]) -> None:
    context: Context = handle._context
    cause = handle.cause if handle.cause and handle.cause == _recorded else context.get(_born_of, 0)
    context.run(_cause.set, cause)
    run()


class _Handle(events.Handle):
    __slots__ = ("cause",)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.cause = _here()

    def _run(self) -> None:
        _run(self, super()._run)


class _TimerHandle(events.TimerHandle):
    __slots__ = ("cause",)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.cause = _here()

    def _run(self) -> None:
        _run(self, super()._run)


def _follow_tasks() -> None:
    create_task = base_events.BaseEventLoop.create_task

    def created(self: Any, coro: Any, *, context: Context | None = None, **named: Any) -> Any:
        context = context or copy_context()
        if _cause.get():
            context.run(_born_of.set, _cause.get())
        return create_task(self, coro, context=context, **named)

    base_events.BaseEventLoop.create_task = created  # type: ignore[method-assign]
    start = threading.Thread.start

    def started(self: threading.Thread) -> None:
        self.run = partial(copy_context().run, self.run)  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = started  # type: ignore[method-assign]


def _ends(transport: Any) -> tuple[int, int] | None:
    """Our port and the other side's, of a TCP connection."""
    ends = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    return (ends[0][1], ends[1][1]) if all(isinstance(end, tuple) for end in ends) else None


def _mark(transport: Any) -> None:
    """For whoever reads at the other end, in whichever process."""
    ends = _ends(transport)
    if ends and _recorded and _cause.get() == _recorded:
        (Path(_folder) / f"{_recorded}-{ends[0]}-{ends[1]}").touch()


def _arrival_is_caused(transport: Any) -> bool:
    ends = _ends(transport)
    if not ends or transport._sock is None:
        return False
    if (Path(_folder) / f"{_recorded}-{ends[1]}-{ends[0]}").exists():
        return True
    try:
        words = transport._sock.recv(64, socket.MSG_PEEK).split()
    except OSError:
        return False
    return len(words) > 1 and words[0] in _METHODS and not words[1].startswith(_UNASKED)


def _follow_connections() -> None:
    transport = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    write, writelines, read_ready = transport.write, transport.writelines, transport._read_ready

    def written(self: Any, data: Any) -> None:
        _mark(self)
        write(self, data)

    def lines_written(self: Any, lines: Any) -> None:
        _mark(self)
        writelines(self, lines)

    def ready(self: Any) -> None:
        if _recorded and _arrival_is_caused(self):
            _cause.set(_recorded)
        read_ready(self)

    transport.write, transport.writelines, transport._read_ready = written, lines_written, ready


def _follow_messages() -> None:
    from nats.aio.client import Client

    send, process_headers = Client._send_publish, Client._process_headers

    async def sent(self: Any, subject: Any, reply: Any, payload: Any, size: Any, headers: Any) -> None:
        if _recorded and _cause.get() == _recorded:
            headers = {**(headers or {}), _HEADER: str(_recorded)}
        await send(self, subject, reply, payload, size, headers)

    async def processed(self: Any, headers: Any) -> Any:
        told = await process_headers(self, headers)
        number = (told or {}).pop(_HEADER, "0")
        _cause.set(int(number))
        return told or None

    Client._send_publish = sent  # type: ignore[method-assign,assignment]
    Client._process_headers = processed  # type: ignore[method-assign]


def _begin(*_: object) -> None:
    global _recorded, _begun
    _entered.clear()
    _caused.clear()
    _begun += 1
    _recorded = _begun


def _end(*_: object) -> None:
    global _recorded
    _recorded = 0
    written = Path(_folder) / f"{os.getpid()}-{_begun}.json"
    unfinished = written.with_suffix(".part")
    unfinished.write_text(json.dumps({"entered": sorted(set(_entered)), "caused": sorted(set(_caused))}))
    unfinished.rename(written)


if _folder:
    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _end)
    events.Handle = asyncio.Handle = _Handle  # type: ignore[misc]
    events.TimerHandle = asyncio.TimerHandle = _TimerHandle  # type: ignore[misc]
    _follow_tasks()
    _follow_connections()
    _follow_messages()
    threading.setprofile(_note)
    sys.setprofile(_note)
