"""Keeps the worker registered: first contact, approval, fresh bus credentials.

The one owner of all calls to register. All other parts ask it to (`again`) and look at `standing`.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import anyio
import structlog

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import FrontendUnreachable
from remuda.core.events import AutoResetEvent, ObservableValue
from remuda.core.retry import Backoff
from remuda.wire.nodes import RegisterReply, RegisterRequest
from remuda.worker.enrolment import BusPolicy, Enrolment, EnrolmentStatus, IssuedBusUser, Verdict, judge
from remuda.worker.ports import FrontendCalls

log = structlog.get_logger(__name__)

RETRY = Backoff(
    timedelta(seconds=limits.REGISTER_RETRY_FIRST_S), timedelta(seconds=limits.REGISTER_RETRY_MOST_S)
)

Describe = Callable[[], Awaitable[RegisterRequest]]
"""This worker as it is now: figures and addresses may change between two registrations."""


class Registration:
    def __init__(
        self,
        frontend: FrontendCalls,
        describe: Describe,
        policy: BusPolicy,
        *,
        clock: Clock,
        entropy: Entropy,
        enrolled: Callable[[Enrolment], None] = lambda _: None,
    ) -> None:
        """`enrolled` is called with each answer before anything else can act on it."""
        self.standing = ObservableValue(EnrolmentStatus())
        self._frontend = frontend
        self._describe = describe
        self._policy = policy
        self._clock = clock
        self._entropy = entropy
        self._enrolled = enrolled
        self._wanted = AutoResetEvent()
        self._failures = 0
        self._warned_s = -math.inf
        self._pending_replies = 0

    @property
    def credentials(self) -> IssuedBusUser | None:
        enrolment = self.standing.value.enrolment
        return enrolment.credentials if enrolment else None

    def again(self) -> None:
        """Register once more soon: the frontend may not know us any more."""
        self._wanted.set()

    def bus_lost(self) -> None:
        """The bus cannot be reached. If its address came from the frontend, that may know better by now.

        Otherwise nothing is asked: some frontends forget a node's models whenever it registers.
        """
        if not self._policy.url or self.credentials is not None:
            self.again()

    async def run(self) -> None:
        """Register, and again whenever there is reason to. Ends only by raising a Rejected: the frontend
        refuses this worker, and asking once more would not help."""
        while True:
            try:
                reply = await self._frontend.register(await self._describe())
            except FrontendUnreachable as trouble:
                await self._after_failure(trouble)
            else:
                self._wanted.clear()  # This answer serves all that asked so far.
                verdict = self._judge(reply)
                self._adopt(verdict.enrolment)
                await self._rest(verdict.again_after)

    async def _after_failure(self, trouble: FrontendUnreachable) -> None:
        self._failures += 1
        now_s = self._clock.monotonic()
        new = self.standing.set(replace(self.standing.value, trouble=trouble.message))
        if new or now_s - self._warned_s >= limits.REGISTER_WARN_AGAIN_S:
            self._warned_s = now_s
            log.warning("registration_failed", reason=trouble.message, attempts=self._failures)
        # Nothing cuts this wait short: it is what keeps a fleet from trampling a frontend that is coming up.
        await anyio.sleep(RETRY.delay(self._failures, self._entropy.fraction()).total_seconds())

    def _judge(self, reply: RegisterReply) -> Verdict:
        self._failures = 0
        self._pending_replies += 1
        verdict = judge(
            reply,
            self._policy,
            self._clock.now(),
            pending_replies=self._pending_replies,
            fraction=self._entropy.fraction(),
        )
        if verdict.enrolment.approved:
            self._pending_replies = 0
        return verdict

    def _adopt(self, enrolment: Enrolment) -> None:
        known = self.standing.value.enrolment
        self._enrolled(enrolment)
        if self.standing.set(EnrolmentStatus(enrolment)) and known != enrolment:
            same_node = known is not None and known.node_id == enrolment.node_id
            log.info("registered", node=enrolment.node_id, approved=enrolment.approved, renewed=same_node)

    async def _rest(self, again_after: timedelta | None) -> None:
        """Until it is time, or it is asked for; never less than the gap, or two confused peers could race."""
        earliest = anyio.current_time() + limits.REGISTER_GAP_S
        with anyio.move_on_after(again_after.total_seconds() if again_after else None):
            await self._wanted.wait()
            await anyio.sleep_until(earliest)
