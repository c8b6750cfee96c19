"""Groups calls that arrive while an earlier group is being served, so that they are served together."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from remuda.core.errors import Rejected, RemudaError, Unavailable

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Caller(Generic[T, R]):
    item: T
    answer: tuple[R | RemudaError] | None = None  # None: not served yet.


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`weight_max` is that of a group; one caller may weigh more, and is then served alone."""

    waiting_max: int
    weight_max: int


class Batcher(Generic[T, R]):
    """It has no task of its own: the caller whose `turn` it is serves all that wait, the first to come first.
    A caller that is cancelled while serving leaves the others to the next, so `serve` may get an item twice.

    `serve` answers each of its group, with an error for those it refuses; raising RemudaError answers all.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[T]], Awaitable[Sequence[R | RemudaError]]],
        turn: Callable[[], AbstractAsyncContextManager[None]],
        bounds: BatchLimits,
        weight: Callable[[T], int] = lambda _: 1,
    ) -> None:
        self._serve = serve
        self._turn = turn
        self._bounds = bounds
        self._weight = weight
        self._waiting: dict[_Caller[T, R], None] = {}

    async def ask(self, item: T) -> R:
        """The answer for this item, or the error that refuses it. Unavailable when too many wait."""
        if len(self._waiting) >= self._bounds.waiting_max:
            raise Unavailable(
                f"{len(self._waiting)} others wait for the same, as many as may", hint="ask again in a moment"
            )
        caller = _Caller[T, R](item)
        self._waiting[caller] = None
        try:
            async with self._turn():
                if caller.answer is None:
                    await self._serve_group(self._next_group())
        finally:
            self._waiting.pop(caller, None)
        assert caller.answer is not None, "turns come in the order of arrival"
        [answer] = caller.answer
        if isinstance(answer, RemudaError):
            raise answer
        return answer

    def _next_group(self) -> list[_Caller[T, R]]:
        group: list[_Caller[T, R]] = []
        weight = 0
        for caller in self._waiting:
            weight += self._weight(caller.item)
            if group and weight > self._bounds.weight_max:
                break
            group.append(caller)
        return group

    async def _serve_group(self, group: Sequence[_Caller[T, R]]) -> None:
        answers: Sequence[R | RemudaError]
        try:
            answers = await self._serve([caller.item for caller in group])
        except Rejected as error:
            if len(group) > 1:  # Something in it cannot be had: that is the trouble of one of them alone.
                for caller in group:
                    await self._serve_group([caller])
                return
            answers = [error]
        except RemudaError as error:
            answers = [error] * len(group)
        for caller, answer in zip(group, answers, strict=True):
            caller.answer = (answer,)
            self._waiting.pop(caller, None)
