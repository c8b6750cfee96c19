"""Answers that go on for as long as someone listens, and those that models write, end when the caller may not
read any more: its key was revoked, or its session has ended, on whichever frontend."""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import TaskStatus
from fastapi.requests import HTTPConnection
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from remuda.accounts.keys import KeyRing
from remuda.core.errors import RemudaError, Unauthorized
from remuda.gateway.client_response import ClientResponse
from remuda.gateway.guards import admin_name
from remuda.gateway.inference.admission import Admission
from remuda.gateway.requests_under_way import Running
from remuda.gateway.services import Services

LOOK_EVERY_S: Final = 15.0  # Sessions that are not used end by themselves.
_LAST_S: Final = 5.0  # For the last words to someone who may not read them.


class ShutOut(Unauthorized):
    """The caller may not read any more."""

    def __init__(self) -> None:
        super().__init__(
            "the session is over, or its key was revoked or paused, or has expired",
            hint="sign in again, or use an active key",
        )


async def until_shut_out(caller: HTTPConnection, svc: Services) -> None:
    """Returns then, and not before."""
    while True:
        changed = svc.keyring.changed
        try:
            admin_name(caller, svc)
        except RemudaError:
            return
        with anyio.move_on_after(LOOK_EVERY_S):
            await changed.wait()


async def unless_shut_out(caller: HTTPConnection, svc: Services, work: Callable[[], Awaitable[None]]) -> None:
    """Do it; raises ShutOut when the caller is, and it is given up."""
    ended, problem = False, None
    async with anyio.create_task_group() as tasks:

        async def watched() -> None:
            await until_shut_out(caller, svc)
            tasks.cancel_scope.cancel()

        tasks.start_soon(watched)
        try:
            await work()
        except Exception as error:  # As it is, and not as one of a group.
            problem = error
        ended = True
        tasks.cancel_scope.cancel()
    if problem is not None:
        raise problem
    if not ended:
        raise ShutOut


class RequestsShutOut:
    """Ends requests under way whose callers would not be let in any more. They are looked at when keys or
    sessions have changed, so that no request pays for it."""

    def __init__(self, running: Running, admission: Admission, keyring: KeyRing) -> None:
        self._running = running
        self._admission = admission
        self._keyring = keyring

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            changed = self._keyring.changed
            self._running.end_those(self._why)
            await changed.wait()

    def _why(self, response: ClientResponse) -> RemudaError | None:
        if response.headers is None or self._admission.is_let_in(response.headers):
            return None
        return ShutOut()


class WatchedStream(StreamingResponse):
    """A stream that ends so."""

    caller: HTTPConnection
    services: Services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        whole = super().__call__
        try:
            await unless_shut_out(self.caller, self.services, lambda: whole(scope, receive, sent))
        except ShutOut:
            if not begun:
                raise
            with anyio.move_on_after(_LAST_S, shield=True):
                await send({"type": "http.response.body"})
