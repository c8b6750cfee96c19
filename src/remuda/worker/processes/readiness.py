"""Whether a process answers, and not another in its place."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import anyio

from remuda.core import limits
from remuda.worker.processes.model import Recipe
from remuda.worker.processes.ports import Backends, Listener, Process

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
            if listener is Listener.OTHERS:
                return Taken()
            ours = listener is Listener.OURS
            if ours and answer.healthy:
                return None
    return NotReady(words)
