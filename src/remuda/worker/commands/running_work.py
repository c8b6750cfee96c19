"""Running installs and upgrades: their progress, and cancelling one."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Literal

import anyio
import structlog

from remuda.core.errors import Conflict
from remuda.oci.progress import PullPhase
from remuda.wire.backends import (
    BackendDelete,
    BackendInstall,
    BackendRollback,
    BackendUpgrade,
    InstallProgress,
)
from remuda.wire.nodes import Work
from remuda.worker.commands import limits
from remuda.worker.commands.progress import InstallSteps, Publisher, Send, publishing
from remuda.worker.depot.fetch_unpack import ProgressStep
from remuda.worker.depot.install_spec import InstallSpec

log = structlog.get_logger(__name__)

Kind = Literal["install", "upgrade", "delete", "rollback"]
Request = BackendInstall | BackendUpgrade | BackendDelete | BackendRollback


class RunningAttempt:
    """One request at work. `changed` is called when it enters another phase."""

    def __init__(
        self,
        kind: Kind,
        request: Request,
        publisher: Publisher | None,
        changed: Callable[[], None],
    ) -> None:
        self.op_id = request.op_id
        self.scope = anyio.CancelScope()
        self._kind = kind
        self._request = request
        self._publisher = publisher
        self._changed = changed
        self._tally = InstallSteps(request.op_id, request.backend)
        self._firm = False

    def comes_from(self, spec: InstallSpec) -> None:
        self._tally.source = next(iter(spec.uris), spec.name)

    def stepped(self, step: ProgressStep) -> None:
        phase = self._tally.phase
        self._tell(self._tally.stepped(step))
        if self._tally.phase is not phase:
            self._changed()

    def arrived(self) -> None:
        """All that was ordered is here: whoever heard of the beginning hears of the end, once."""
        if self._tally.overall < 100.0:
            self.stepped(ProgressStep(PullPhase.EXTRACTING, 100.0))

    def starting(self) -> None:
        self._tell(self._tally.starting())
        self._changed()

    @contextmanager
    def firm(self) -> Iterator[None]:
        """In this block it can no longer be given up: processes come or go."""
        self._firm = True
        try:
            yield
        finally:
            self._firm = False

    def give_up(self) -> bool:
        """Whether it could."""
        if not self._firm:
            self.scope.cancel()
        return not self._firm

    def report(self) -> Work:
        return Work(
            op_id=self.op_id,
            attempt=self._request.attempt,
            kind=self._kind,
            phase=self._tally.phase,
            backend=self._request.backend,
            percentage=self._tally.overall,
        )

    def _tell(self, event: InstallProgress) -> None:
        if self._publisher is not None:
            self._publisher.tell(event)


class WorkInHand:
    """`deliver` returns when the frontend knows what is installed now."""

    def __init__(
        self, send: Send, changed: Callable[[], None], deliver: Callable[[], Awaitable[None]]
    ) -> None:
        self._send = send
        self._changed = changed
        self._deliver = deliver
        self._attempts: list[RunningAttempt] = []

    @asynccontextmanager
    async def attempting(
        self, kind: Kind, request: Request, *, reported: bool = True
    ) -> AsyncIterator[RunningAttempt]:
        """Listed while the block lasts. Progress goes out only if the request names an operation; then also
        the frontend is to know what is installed before the reply: whoever looks after it must find it.

        Raises Conflict when it was given up meanwhile.
        """
        async with AsyncExitStack() as stack:
            watched = request.op_id != ""
            publisher = await stack.enter_async_context(publishing(self._send)) if watched else None
            attempt = RunningAttempt(kind, request, publisher, self._changed)
            stack.enter_context(self._listed(attempt))
            with attempt.scope:
                yield attempt
            if attempt.scope.cancelled_caught:
                raise Conflict(f"the {kind} was cancelled", hint="what was downloaded is kept")
            if watched and reported:
                with anyio.move_on_after(limits.REPORT_BEFORE_REPLY_S):
                    await self._deliver()

    def cancel(self, op_id: str) -> bool:
        """Give up what is at work for this operation; whether there was anything that could be."""
        meant = [attempt for attempt in self._attempts if attempt.op_id == op_id and op_id]
        return any([attempt.give_up() for attempt in meant])

    def report(self) -> tuple[Work, ...]:
        return tuple(attempt.report() for attempt in self._attempts)

    @contextmanager
    def _listed(self, attempt: RunningAttempt) -> Iterator[None]:
        """The log tells of each that it was begun here, and once: operations count on that."""
        work = attempt.report()
        told = log.bind(op=work.op_id, attempt=work.attempt, kind=work.kind, backend=work.backend)
        told.info("work_begun")
        self._attempts.append(attempt)
        self._changed()
        try:
            yield
        finally:
            self._attempts.remove(attempt)
            self._changed()
            told.info("work_ended")
