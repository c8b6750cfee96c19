"""Waiting for a state with a deadline: the one place in the tests that lets time pass."""

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

import anyio

T = TypeVar("T")

POLL_S = 0.02
# Later questions come less often, a tenth of the wait apart: each may cost a frontend milliseconds of CPU,
# and then it is the waiting that makes the machine slow.
_POLL_MOST_S = 0.2
PATIENCE = 3.0  # Limits are for a machine of one's own, and tests share theirs.


@overload
async def wait_until(predicate: Callable[[], Awaitable[T]], *, within: float = ..., what: str = ...) -> T: ...
@overload
async def wait_until(predicate: Callable[[], T], *, within: float = ..., what: str = ...) -> T: ...
async def wait_until(predicate: Callable[[], object], *, within: float = 10.0, what: str = "") -> object:
    """Ask until the answer is true, and return it; fail after `within` seconds, of a
    machine of its own, with the last answer."""
    began = anyio.current_time()
    deadline = began + within * PATIENCE
    while True:
        asked = predicate()
        answer = await asked if inspect.isawaitable(asked) else asked
        if answer:
            return answer
        if anyio.current_time() >= deadline:
            raise AssertionError(_too_late(predicate, what, within, answer))
        await anyio.sleep(_pause_s(anyio.current_time() - began))


def wait_until_blocking(predicate: Callable[[], T | None], *, within: float = 10.0, what: str = "") -> T:
    """The same, for tests that run no event loop."""
    began = time.monotonic()
    deadline = began + within * PATIENCE
    while not (answer := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(predicate, what, within, answer))
        time.sleep(_pause_s(time.monotonic() - began))  # noqa: TID251 - this is how a state is waited for.
    return answer


def _pause_s(waited_s: float) -> float:
    return min(max(POLL_S, waited_s / 10), _POLL_MOST_S)


def _too_late(predicate: Callable[[], object], what: str, within: float, answer: object) -> str:
    waited = f"waited {within * PATIENCE:g} s for {what or predicate.__qualname__}"
    return f"{waited}; the last answer was {answer!r}"
