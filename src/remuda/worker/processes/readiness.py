"""Whether a process answers: while it starts, and once it has."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import anyio

from remuda.core import limits
from remuda.worker.processes.model import Recipe
from remuda.worker.processes.ports import Backends

_SHARE_OF_AGE: Final = 0.03


@dataclass(frozen=True, slots=True)
class NotReady:
    """It did not answer well in time; `words` are about the last try."""

    words: str


def pause(age: timedelta) -> timedelta:
    """Until a starting process is asked again: short at first, for most start in no time, and cheap later."""
    seconds = max(age.total_seconds() * _SHARE_OF_AGE, limits.BACKEND_HEALTH_FIRST_S)
    return timedelta(seconds=min(seconds, limits.BACKEND_HEALTH_MOST_S))


async def answered(backends: Backends, port: int, recipe: Recipe) -> NotReady | None:
    """Wait for the first good answer, as long as the recipe allows; None when it came."""
    began, words = anyio.current_time(), "nothing was heard"
    with anyio.move_on_after(recipe.start_limit.total_seconds()):
        while True:
            age = timedelta(seconds=anyio.current_time() - began)
            await anyio.sleep(pause(age).total_seconds())
            answer = await backends.health(port, recipe)
            if answer.healthy:
                return None
            words = answer.words
    return NotReady(words)
