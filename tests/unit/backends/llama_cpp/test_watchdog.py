"""When an engine is ended because one step takes too long, and what each caller is told then."""

from dataclasses import replace

import anyio
import grpc
import pytest
from anyio.abc import SocketAttribute, SocketStream

from remuda.backends.calls import Refused
from remuda.backends.llama_cpp import limits
from remuda.backends.llama_cpp.connection import EngineConnection, EngineGone
from remuda.backends.llama_cpp.watchdog import StepLimit, Watchdog

pytestmark = pytest.mark.anyio

NO_PROCESS = (1 << 31) - 1  # Without its CPU time the clock's time counts.
AT_ONCE = StepLimit(least_s=0.0, token_s=0.0, slots=1, batch=1)


def test_a_slow_machine_has_longer_steps() -> None:
    fast = StepLimit(least_s=10, token_s=0.02, slots=4, batch=512)
    slow = StepLimit(least_s=10, token_s=0.5, slots=4, batch=512)

    assert [fast.seconds(prompts=prompts) for prompts in (False, True)] == [10, 512 * 0.02]
    assert [slow.seconds(prompts=prompts) for prompts in (False, True)] == [20, 256]
    assert StepLimit(10, token_s=30, slots=4, batch=512).seconds(prompts=True) == limits.SILENCE_S


async def statuses(*bound: bool, left: int = 0, late: int = 0) -> list[grpc.StatusCode]:
    return [refused.code for refused in await refusals(*bound, left=left, late=late)]


async def refusals(*bound: bool, left: int = 0, late: int = 0) -> list[Refused]:
    """Of calls in an engine that is ended; `left` calls with a grammar had been given up a moment before, and
    the last `late` ones came when the engine was held already."""
    held = anyio.Event()

    async def say_nothing(stream: SocketStream) -> None:
        held.set()
        async with stream:
            await anyio.sleep_forever()

    told: dict[int, Refused] = {}
    ended = anyio.Event()

    async def call(number: int, dog: Watchdog) -> None:
        if number >= len(bound) - late:
            await held.wait()
        try:
            with dog.working(bound=bound[number]):
                await ended.wait()
                raise EngineGone("it is gone")
        except Refused as refused:
            told[number] = refused

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, say_nothing)
        limit = replace(AT_ONCE, least_s=0.5 if late else 0.0)
        dog = Watchdog(NO_PROCESS, EngineConnection(listener.extra(SocketAttribute.local_port), "key"), limit)
        for _ in range(left):
            with pytest.raises(KeyboardInterrupt), dog.working(bound=True):
                raise KeyboardInterrupt
        async with anyio.create_task_group() as calls:
            for number in range(len(bound)):
                calls.start_soon(call, number, dog)
            await dog.run(ended.set)
        tasks.cancel_scope.cancel()
    return [told[number] for number in range(len(bound))]


async def test_the_call_with_the_grammar_is_refused_and_others_may_be_tried_again() -> None:
    assert await statuses(True, False) == [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
    ]


async def test_programs_are_told_by_metadata_that_an_engine_was_ended() -> None:
    [alone, other] = await refusals(True, False)
    assert (alone.metadata, other.metadata) == ((("remuda-engine-ended", "this-call"),), ())
    several = {refused.metadata for refused in await refusals(True, True)}
    assert several == {(("remuda-engine-ended", "one-of-several"),)}


async def test_of_several_calls_with_a_grammar_none_is_blamed() -> None:
    assert await statuses(True, True) == [grpc.StatusCode.ABORTED] * 2
    assert await statuses(True, left=1) == [grpc.StatusCode.ABORTED]


async def test_a_call_that_comes_while_an_engine_is_held_is_not_blamed() -> None:
    assert await statuses(True, True, late=1) == [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
    ]


async def test_a_call_that_was_given_up_counts_for_as_long_as_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LEFT_S", 0.0)

    [other] = await refusals(False, left=1)

    assert "with a grammar" in str(other)


async def test_an_engine_that_ended_by_itself_is_told_as_such() -> None:
    dog = Watchdog(NO_PROCESS, EngineConnection(1, "key"), AT_ONCE)

    with pytest.raises(EngineGone), dog.working(bound=True):
        raise EngineGone("it is gone")
