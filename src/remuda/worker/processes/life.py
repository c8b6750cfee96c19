"""The life of one process: until it answers (it, and not another in its place), while it serves, and what
ended it. It ends nothing itself."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import anyio

from remuda.core import limits
from remuda.worker.processes.exit_reasons import Ended, Over, PortLost, Useless
from remuda.worker.processes.model import ProcessPhase, Recipe
from remuda.worker.processes.ports import Backends, PortListener, Process

_SHARE_OF_AGE: Final = 0.03


@dataclass(frozen=True, slots=True)
class NotReady:
    """It did not answer well in time; `words` are about the last try."""

    words: str


@dataclass(frozen=True, slots=True)
class Taken:
    """Another program listens where the process should."""


def pause(age: timedelta) -> timedelta:
    """Until a starting process is asked again: short at first, for most start in no time, and cheap later."""
    seconds = max(age.total_seconds() * _SHARE_OF_AGE, limits.BACKEND_HEALTH_FIRST_S)
    return timedelta(seconds=min(seconds, limits.BACKEND_HEALTH_MOST_S))


async def answered(
    backends: Backends, process: Process, port: int, recipe: Recipe, limit: timedelta
) -> NotReady | Taken | None:
    """Wait for the first good answer of this process; None when it came."""
    began, words, ours = anyio.current_time(), "no answer", False
    with anyio.move_on_after(limit.total_seconds()):
        while True:
            age = timedelta(seconds=anyio.current_time() - began)
            await anyio.sleep(pause(age).total_seconds())
            answer = await backends.health(port, recipe)
            words = answer.words
            if answer.refused or (ours and not answer.healthy):
                continue
            listener = await process.listener_on(port)
            if listener is PortListener.OTHERS:
                return Taken()
            ours = listener is PortListener.OURS
            if ours and answer.healthy:
                return None
    return NotReady(words)


OnPhase = Callable[[ProcessPhase, str], None]


class Life:
    def __init__(
        self,
        process: Process,
        port: int,
        recipe: Recipe,
        backends: Backends,
        *,
        start_left: timedelta,
        watch: timedelta,
    ) -> None:
        """`start_left` is what others before it have left of the time for a start; `watch` how long it is
        left alone between two looks at it."""
        self.was_ready = False
        self._process = process
        self._port = port
        self._recipe = recipe
        self._backends = backends
        self._start_left = start_left
        self._watch_s = watch.total_seconds()

    async def until_over(self, stop_wanted: anyio.Event, on_phase: OnPhase) -> Over | None:
        """None: a stop is wanted. Otherwise it is over by itself."""
        over: list[Over | None] = []

        async def first(part: Callable[[], Awaitable[Over | None]]) -> None:
            over.append(await part())
            parts.cancel_scope.cancel()

        async def stopped() -> None:
            await stop_wanted.wait()

        async def ended() -> Over:
            return Ended(await self._process.wait())

        async def served() -> Over:
            return await self._become_ready() or await self._serve(on_phase)

        async with anyio.create_task_group() as parts:
            for part in (stopped, ended, served):
                parts.start_soon(first, part)
        return over[0]

    async def _become_ready(self) -> Useless | PortLost | None:
        match await answered(self._backends, self._process, self._port, self._recipe, self._start_left):
            case NotReady(words):
                return Useless(self._why_silent(words, self._process.listening()))
            case Taken():
                return PortLost(self._port)
        return None

    def _why_silent(self, words: str, listening: frozenset[int] | None) -> str:
        limit_s = self._recipe.start_limit.total_seconds()
        told = f"did not become ready on port {self._port} within {limit_s:g} s: {words}"
        if listening and self._port not in listening:
            told += f" (it listens on {', '.join(map(str, sorted(listening)))} instead)"
        return told

    async def _serve(self, on_phase: OnPhase) -> Useless:
        """Until it has closed its port for good. Silence alone ends nothing: it may be at work."""
        self.was_ready = True
        on_phase(ProcessPhase.READY, "")
        phase, refusals = ProcessPhase.READY, 0
        while True:
            pause_s = limits.BACKEND_WATCH_AGAIN_S if refusals else self._watch_s
            await anyio.sleep(pause_s)
            answer = await self._backends.health(self._port, self._recipe)
            refusals = refusals + 1 if answer.refused else 0
            if refusals >= limits.BACKEND_REFUSALS_MAX:
                return Useless(f"closed its port {self._port} but is still running")
            seen = ProcessPhase.READY if answer.healthy else ProcessPhase.UNRESPONSIVE
            if seen is not phase:
                phase = seen
                on_phase(seen, "" if answer.healthy else answer.words)
