"""Requests are answered, whatever they are and whatever comes of them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from remuda.core.errors import BusUnusable, Conflict, TooLarge
from remuda.core.ids import NodeId
from remuda.wire import subjects
from remuda.wire.backends import BackendCancel, BackendCancelReply, BackendStop
from remuda.wire.codec import decode
from remuda.worker.commands import limits
from remuda.worker.commands.dispatch import Command, Dispatcher

pytestmark = pytest.mark.anyio

NODE = NodeId("n1")
Ask = Callable[["Asked"], Coroutine[None, None, None]]
Handle = Callable[[BackendCancel], Awaitable[BackendCancelReply]]


@dataclass
class Asked:
    """A request as the bus hands it over."""

    payload: bytes = b'{"op_id":"o-1"}'
    replies: list[bytes] = field(default_factory=list)
    bytes_max: int = 1000

    async def respond(self, reply: bytes) -> None:
        if len(reply) > self.bytes_max:
            raise TooLarge("more than the bus carries")
        self.replies.append(reply)

    @property
    def reply(self) -> BackendCancelReply:
        (only,) = self.replies
        return decode(BackendCancelReply, only)


async def succeed(request: BackendCancel) -> BackendCancelReply:
    return BackendCancelReply(success=True, cancelled=request.op_id == "o-1")


@asynccontextmanager
async def dispatching(handle: Handle) -> AsyncIterator[Ask]:
    command = Command(subjects.backend_cancel, BackendCancel, handle, BackendCancelReply)
    dispatcher = Dispatcher([command])

    async def ask(asked: Asked) -> None:
        await dispatcher.handlers(NODE)[subjects.backend_cancel(NODE)](asked)

    async with anyio.create_task_group() as tasks:
        await tasks.start(dispatcher.run)
        yield ask
        tasks.cancel_scope.cancel()


async def test_request_reaches_its_handler_and_the_answer_its_sender() -> None:
    asked = Asked()
    async with dispatching(succeed) as hear:
        await hear(asked)

    assert asked.reply == BackendCancelReply(success=True, cancelled=True)


@pytest.mark.parametrize("payload", [b"x", b"", b"[]", b"{}", b'{"op_id":7}', b"\xff"])
async def test_malformed_request_is_answered_with_the_reason(payload: bytes) -> None:
    asked = Asked(payload)
    async with dispatching(succeed) as hear:
        await hear(asked)

    assert not asked.reply.success
    assert asked.reply.error.startswith("invalid request: ")


async def test_trouble_is_answered_with_its_message_and_hint() -> None:
    async def fail(_: BackendCancel) -> BackendCancelReply:
        raise Conflict("it is in use", hint="stop it first")

    asked = Asked()
    async with dispatching(fail) as hear:
        await hear(asked)

    assert asked.reply == BackendCancelReply(error="it is in use (stop it first)")


async def test_defect_is_answered_as_an_internal_error() -> None:
    async def break_down(_: BackendCancel) -> BackendCancelReply:
        raise ZeroDivisionError

    asked = Asked()
    async with dispatching(break_down) as hear:
        await hear(asked)

    assert asked.reply.error.startswith("internal error")
    assert "ZeroDivision" not in asked.reply.error


async def test_reply_that_cannot_be_encoded_still_answers() -> None:
    """Row A154."""

    async def unsayable(_: BackendCancel) -> BackendCancelReply:
        return BackendCancelReply(error="a file called \udcff")

    asked = Asked()
    async with dispatching(unsayable) as hear:
        await hear(asked)

    assert asked.reply.error.startswith("internal error")


async def test_error_that_quotes_an_unsayable_name_still_answers() -> None:
    async def fail(_: BackendCancel) -> BackendCancelReply:
        raise Conflict("a file called \udcff")

    asked = Asked()
    async with dispatching(fail) as hear:
        await hear(asked)

    assert asked.reply.error == "a file called ?"


async def test_reply_too_large_for_the_bus_still_answers() -> None:
    async def ramble(_: BackendCancel) -> BackendCancelReply:
        return BackendCancelReply(error="x" * 2000)

    asked = Asked()
    async with dispatching(ramble) as hear:
        await hear(asked)

    assert asked.reply.error == "the reply is too large for the bus"


async def test_slow_request_delays_no_other_on_the_same_subject() -> None:
    """Row A146."""
    never = anyio.Event()

    async def wait_for_some(request: BackendCancel) -> BackendCancelReply:
        if request.op_id == "slow":
            await never.wait()
        return BackendCancelReply(success=True)

    slow, quick = Asked(b'{"op_id":"slow"}'), Asked()
    async with dispatching(wait_for_some) as hear, anyio.create_task_group() as senders:
        senders.start_soon(hear, slow)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            await hear(quick)
        never.set()

    assert quick.reply.success


async def test_too_many_requests_on_one_subject_are_refused_in_words() -> None:
    never = anyio.Event()

    async def wait(_: BackendCancel) -> BackendCancelReply:
        await never.wait()
        return BackendCancelReply(success=True)

    crowd, one_more = [Asked() for _ in range(limits.PER_SUBJECT_MAX)], Asked()
    async with dispatching(wait) as hear, anyio.create_task_group() as senders:
        for asked in crowd:
            senders.start_soon(hear, asked)
        await anyio.wait_all_tasks_blocked()
        await hear(one_more)
        never.set()

    assert "try again later" in one_more.reply.error
    assert all(asked.reply.success for asked in crowd)


async def test_losing_the_connection_does_not_end_the_work() -> None:
    worked, go_on = anyio.Event(), anyio.Event()

    async def work(_: BackendCancel) -> BackendCancelReply:
        await go_on.wait()
        worked.set()
        return BackendCancelReply(success=True)

    async with dispatching(work) as hear:
        async with anyio.create_task_group() as connection:
            connection.start_soon(hear, Asked())
            await anyio.wait_all_tasks_blocked()
            connection.cancel_scope.cancel()
        go_on.set()
        with anyio.fail_after(5):
            await worked.wait()

    assert worked.is_set()


async def test_whoever_waits_when_the_worker_stops_is_told() -> None:
    async def wait(_: BackendCancel) -> BackendCancelReply:
        await anyio.sleep_forever()
        raise AssertionError("it slept for ever")

    asked = Asked()
    async with anyio.create_task_group() as senders, dispatching(wait) as hear:
        senders.start_soon(hear, asked)
        await anyio.wait_all_tasks_blocked()

    assert asked.reply.error == "this worker is stopping"


async def test_reply_that_cannot_be_sent_breaks_nothing() -> None:
    class Unreachable(Asked):
        async def respond(self, reply: bytes) -> None:
            raise BusUnusable("down")

    asked = Asked()
    async with dispatching(succeed) as hear:
        await hear(Unreachable())
        await hear(asked)

    assert asked.reply.success


async def test_malformed_order_without_reply_is_ignored() -> None:
    heard: list[BackendStop] = []

    async def stop(request: BackendStop) -> None:
        heard.append(request)

    dispatcher = Dispatcher([Command(subjects.backend_stop, BackendStop, stop)])
    malformed, empty = Asked(b"x"), Asked(b"")
    async with anyio.create_task_group() as tasks:
        await tasks.start(dispatcher.run)
        hear = dispatcher.handlers(NODE)[subjects.backend_stop(NODE)]
        await hear(malformed)
        await hear(empty)
        tasks.cancel_scope.cancel()

    assert heard == [BackendStop()]
    assert malformed.replies == empty.replies == []
