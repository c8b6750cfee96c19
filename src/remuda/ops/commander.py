"""Sends what the reconciler has committed, and records the replies, however late they arrive."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import BusRefused, BusUnusable, NodeUnreachable, PeerFailed, Problem, RemudaError
from remuda.core.events import AutoResetEvent
from remuda.core.retry import Backoff
from remuda.core.tasks import TaskOwner
from remuda.ops import replies
from remuda.ops.failures import defect
from remuda.ops.model import (
    FRONTENDS,
    AttemptKey,
    Dispatch,
    Ending,
    Kind,
    NotNeeded,
    Outcome,
    Stage,
    Step,
    StepPolicy,
    Verb,
)
from remuda.ops.ports import BusCheck, FrontendWork, ModelWork, OpSignal, OpStore, PatientBusPort
from remuda.ops.progress_board import ProgressBoard, ProgressSubscription

log = structlog.get_logger(__name__)

_REPLY_MOST: Final = timedelta(hours=24)  # For as long as a worker may answer one request.
_WITH_PROGRESS: Final = frozenset({Verb.INSTALL, Verb.UPGRADE, Verb.PROVE, Verb.LOAD}) | {Verb.INSTALL_MODEL}
_FETCHES: Final = frozenset({Verb.INSTALL, Verb.UPGRADE})  # By a worker, which tells how much has come.
_OWNERS_MAX: Final = 3  # Frontends that may die over one load.
_INSTALL_OWNERS_MAX: Final = 100  # The same over one install of a model, which goes on where it was.
_TAKEN_OVER_AFTER: Final = timedelta(seconds=1)
_OWNER_SILENT: Final = timedelta(seconds=15)  # After its request is no longer known to be open.
_GIVEN_UP: Final = NotNeeded("it was abandoned because it is no longer wanted")
_LISTEN_AGAIN_S: Final = 15.0
_AT_IT: Final = timedelta(seconds=60)  # A worker that said how far it is counts as being at it.
_AGAIN: Final = Backoff(timedelta(seconds=1), timedelta(seconds=30), jitter=0.0)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Until when a reply is on time. A later one counts as well: the worker was slow, it did not fail."""

    install: timedelta = timedelta(minutes=15)
    upgrade: timedelta = timedelta(minutes=15)
    remove: timedelta = timedelta(minutes=2)
    roll_back: timedelta = timedelta(minutes=2)
    cancel: timedelta = timedelta(seconds=10)
    load: timedelta = timedelta(hours=24)  # The loader has deadlines of its own, which progress extends.
    unload: timedelta = timedelta(minutes=15)
    install_model: timedelta = timedelta(days=30)  # However large it is: what stalls is given up sooner.

    def of(self, step: Step) -> timedelta:
        if step.stage is Stage.ROLL_BACK:
            return self.roll_back
        if step.stage is Stage.PROVE:
            return self.install
        return {
            Kind.INSTALL: self.install,
            Kind.UPGRADE: self.upgrade,
            Kind.REMOVE: self.remove,
            Kind.LOAD: self.load,
            Kind.UNLOAD: self.unload,
            Kind.INSTALL_MODEL: self.install_model,
            Kind.REMOVE_MODEL: self.remove,
        }[step.kind]

    def policy(self, step: Step, policy: StepPolicy) -> StepPolicy:
        if step.kind.of_replica:  # A request waits: it is taken over soon, and not for ever.
            return replace(
                policy,
                answer=self.of(step),
                lease=_OWNER_SILENT,
                failures_max=_OWNERS_MAX,
                backoff_first=_TAKEN_OVER_AFTER,
            )
        if step.node == FRONTENDS:
            return replace(policy, answer=self.of(step), lease=_OWNER_SILENT, owners_max=_INSTALL_OWNERS_MAX)
        return replace(policy, answer=self.of(step))


@dataclass(slots=True)
class _Open:
    """A request whose reply is awaited."""

    on_time_until_s: float
    doubted: bool = False  # The bus was away meanwhile: the reply may have been missed.
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class BusCommander:
    """`run` owns the requests: each is a task of its own, and none waits for another.

    `signal` is given when a reply is stored.
    """

    def __init__(
        self,
        bus: PatientBusPort,
        store: OpStore,
        board: ProgressBoard,
        progress: ProgressSubscription,
        clock: Clock,
        *,
        timeouts: Timeouts,
        at_once_max: int,
        bus_trouble: BusCheck,
        signal: OpSignal,
        model_work: ModelWork | None = None,
        frontend_work: FrontendWork | None = None,
        own_at_once_max: int = 1,
    ) -> None:
        self._model_work = model_work
        self._frontend_work = frontend_work
        self._own_at_once_max = own_at_once_max
        self._bus = bus
        self._store = store
        self._board = board
        self._progress = progress
        self._clock = clock
        self._timeouts = timeouts
        self._at_once_max = at_once_max
        self._bus_trouble = bus_trouble
        self._signal = signal
        self._open: dict[AttemptKey, _Open] = {}
        self._cancelling: set[AttemptKey] = set()
        self._telling = False  # Somewhere an attempt is at work of which progress may be heard.
        self._telling_changed = AutoResetEvent()
        self._tasks = TaskOwner()

    @property
    def room(self) -> int:
        """How many more may be begun now. A worker that is overdue takes no other's place."""
        if self._bus_trouble():
            return 0
        now_s = self._clock.monotonic()
        busy = sum(
            now_s < one.on_time_until_s and not one.doubted
            for (_, node, _), one in self._open.items()
            if node != FRONTENDS
        )
        return max(self._at_once_max - busy, 0)

    @property
    def own_room(self) -> int:
        """How many more this frontend may begin that it does for itself."""
        if self._frontend_work is None:
            return 0
        return max(self._own_at_once_max - sum(node == FRONTENDS for _, node, _ in self._open), 0)

    @property
    def awaited(self) -> frozenset[AttemptKey]:
        """The attempts whose reply this frontend waits for, and has not missed."""
        return frozenset(key for key, request in self._open.items() if not request.doubted)

    @property
    def heard_of(self) -> frozenset[AttemptKey]:
        """The attempts whose progress was reported lately."""
        return self._board.heard_of(_AT_IT)

    def keep(self, at_work: Collection[AttemptKey], *, telling: bool = False) -> None:
        """Stop waiting for replies about any other attempt: they would not be used. While a worker may be
        `telling` how far it is, that is listened to, whichever frontend sent the request."""
        if telling is not self._telling:
            self._telling = telling
            self._telling_changed.set()
        for key, request in self._open.items():
            if key not in at_work:
                request.scope.cancel()
        self._board.keep(at_work)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with self._tasks.open():
            task_status.started()
            await self._listen_while_told()

    async def _listen_while_told(self) -> None:
        """Also to what a frontend sent that is gone; and again where the bus did not confirm it."""
        while True:
            await self._telling_changed.wait()
            if not self._telling:
                continue
            async with self._progress.listening():
                while self._telling:
                    with anyio.move_on_after(_LISTEN_AGAIN_S):
                        await self._telling_changed.wait()
                    await self._progress.subscribe()

    async def send(self, dispatch: Dispatch, step: Step) -> None:
        """Begin to send it, and return. The reply, whenever it comes, goes to the store."""
        key = (dispatch.op, dispatch.node, dispatch.attempt)
        if dispatch.verb is Verb.CANCEL and dispatch.node == FRONTENDS:
            return  # Whichever frontend is at it finds in its next pass that it is not wanted: see `keep`.
        if dispatch.verb is Verb.CANCEL:
            self.cancel(key)
        elif key not in self._open:
            until_s = self._clock.monotonic() + self._timeouts.of(step).total_seconds()
            self._open[key] = _Open(until_s)
            self._tasks.start(self._carry_out, key, dispatch.verb, step)

    def cancel(self, key: AttemptKey) -> None:
        """Begin to tell the worker that this is not wanted; once at a time."""
        if key not in self._cancelling:
            self._cancelling.add(key)
            self._tasks.start(self._tell_to_stop, key)

    async def _carry_out(self, key: AttemptKey, verb: Verb, step: Step) -> None:
        try:
            with self._open[key].scope as scope:
                async with self._listening(key, verb):
                    outcome = await self._outcome(verb, step)
                if outcome is not None:
                    if verb in _FETCHES:
                        outcome = self._with_fetched(key, outcome)
                    self._board.ended(key)
                    await self._record(step, outcome)
            if scope.cancelled_caught and step.by_frontend:  # Then nothing is at work any more.
                await self._record(step, Outcome(step.attempt, _GIVEN_UP))
        except Exception as error:  # One attempt's defect is no other's.
            log.exception("dispatch_broke", op=step.op, node=step.node, verb=verb)
            if step.by_frontend:  # Nothing else would end it: a worker's attempt ends with its lease.
                await self._record(step, Outcome(step.attempt, defect(error)))
        finally:
            del self._open[key]

    def _with_fetched(self, key: AttemptKey, outcome: Outcome) -> Outcome:
        """A failure says how much had come: one after which there is more than before does not count."""
        ending, fetched = outcome.ending, self._board.fetched_bytes(key)
        if not fetched or not isinstance(ending, Problem) or not ending.retryable:
            return outcome
        return replace(outcome, ending=replace(ending, kept_bytes=fetched))

    @asynccontextmanager
    async def _listening(self, key: AttemptKey, verb: Verb) -> AsyncIterator[None]:
        """Subscribed before the request is sent, so that the first event is not missed."""
        if verb not in _WITH_PROGRESS:
            yield
            return
        self._board.begin(key)
        async with self._progress.listening():
            yield

    async def _outcome(self, verb: Verb, step: Step) -> Outcome | None:
        """How it ended; None: unknown, the worker may have received the request, or not."""
        trouble = "" if step.node == FRONTENDS else self._bus_trouble()
        if trouble:  # Nothing was sent, and that is certain.
            return Outcome(step.attempt, BusUnusable(trouble).problem())
        try:
            ending = await self._ask(verb, step)
        except NodeUnreachable:
            ending = replies.UNREACHABLE
        except BusRefused as error:
            ending = error.problem()
        except (BusUnusable, PeerFailed) as error:
            if step.by_frontend:  # There is no reply that may still come: it was this process that stopped.
                return Outcome(step.attempt, error.problem())
            log.warning("reply_missing", op=step.op, node=step.node, verb=verb, reason=error.message)
            return None
        except RemudaError as error:
            ending = error.problem()
        return Outcome(step.attempt, ending)

    async def _ask(self, verb: Verb, step: Step) -> Ending:
        if step.node == FRONTENDS:
            assert self._frontend_work is not None, "a frontend that begins these can carry them out"
            return await self._frontend_work.carry_out(step)
        match verb:
            case Verb.REMOVE_MODEL:
                return await self._remove_files(step)
            case Verb.LOAD | Verb.UNLOAD:
                assert self._model_work is not None, "a frontend that sends these can carry them out"
                return await self._model_work.carry_out(step)
            case Verb.UPGRADE:
                return await self._upgrade(step)
            case Verb.REMOVE:
                return await self._remove(step)
            case Verb.INSTALL:
                return await self._install(step)
            case _:
                ending = replies.ending_in(verb, await self._request(step, replies.call(verb, step)), step)
        if verb is Verb.PROVE and ending is None:
            stop = replies.stop_proof(step)
            await self._bus.publish(stop.subject, stop.payload)
        return ending

    async def _install(self, step: Step) -> Ending:
        """How long it took is kept for plans of loads."""
        began_s, work = self._clock.monotonic(), self._model_work
        reply = await self._request(step, replies.call(Verb.INSTALL, step))
        ending = replies.ending_in(Verb.INSTALL, reply, step)
        if work is not None and replies.was_installed(reply, ending):
            backend = step.source.alias or step.source.backend
            work.backend_installed(step.node, backend, self._clock.monotonic() - began_s)
        return ending

    async def _upgrade(self, step: Step) -> Ending:
        """The one place that knows of workers older than the subject for upgrades."""
        try:
            reply = await self._request(step, replies.call(Verb.UPGRADE, step))
            return replies.ending_in(Verb.UPGRADE, reply, step)
        except NodeUnreachable:
            log.warning(
                "upgrade_fell_back_to_forced_install",
                op=step.op,
                node=step.node_name,
                backend=step.source.backend,
            )
        problem = replies.problem_in(
            Verb.INSTALL, await self._request(step, replies.forced_install(step)), step
        )
        return None if problem is None else replies.in_legacy_words(problem)

    async def _remove(self, step: Step) -> Problem | None:
        """One name after another, until nothing is left under any of them."""
        for call in (replies.call(Verb.REMOVE, step), *replies.other_names(step)):
            problem = replies.problem_in(Verb.REMOVE, await self._request(step, call), step)
            if problem is not None and not replies.not_found(problem):
                return problem
        return None

    async def _remove_files(self, step: Step) -> Ending:
        reply = await self._request(step, replies.call(Verb.REMOVE_MODEL, step))
        return replies.delete_ending(reply, step.source.name)

    async def _request(self, step: Step, call: replies.WorkerRequest) -> bytes:
        known = await self._replicas_known()
        doubt = partial(self._doubt, (step.op, step.node, step.attempt))
        reply = await self._bus.request(call.subject, call.payload, _REPLY_MOST, on_gap=doubt)
        if self._model_work is not None and known is not None and (stopped := replies.stopped_in(reply)):
            try:
                await self._model_work.forget_stopped(step.node, stopped, known)
            except RemudaError as error:  # What is no longer there is noticed a little later.
                log.warning("stopped_replicas_not_forgotten", node=step.node, reason=error.message)
        return reply

    async def _replicas_known(self) -> int | None:
        try:
            return None if self._model_work is None else await self._model_work.latest_change()
        except RemudaError:
            return None

    def _doubt(self, key: AttemptKey) -> None:
        """The reply may have been missed. It still counts if it comes, but is not relied on."""
        request = self._open.get(key)
        if request is not None and self._tasks.is_open:
            request.doubted = True
            self._tasks.start(self._release, key)

    async def _release(self, key: AttemptKey) -> None:
        """Best effort: a request that is not held counts as open for a while, and then no longer."""
        op, node, attempt = key
        log.warning("reply_maybe_lost", op=op, node=node, attempt=attempt)
        try:
            await self._store.hold(op, node, attempt, timedelta())
        except RemudaError as error:
            log.warning("request_not_released", op=op, node=node, reason=error.message)
        self._signal.notify()

    async def _record(self, step: Step, outcome: Outcome) -> None:
        """A reply arrives once. While the store cannot take it, it is kept here."""
        failed = 0
        while True:
            try:
                await self._store.answer(step.op, step.node, outcome)
                break
            except RemudaError as error:
                failed += 1
                log.warning("reply_not_stored", op=step.op, node=step.node, reason=error.message)
                await anyio.sleep(_AGAIN.delay(failed, 0.0).total_seconds())
        self._signal.notify()

    async def _tell_to_stop(self, key: AttemptKey) -> None:
        """Best effort: whether it stopped is seen in the worker's report, or in the reply to its request."""
        op, node, _ = key
        call = replies.cancel(op, node)
        try:
            await self._bus.request(call.subject, call.payload, self._timeouts.cancel)
            log.info("cancel_sent", op=op, node=node)
        except RemudaError as error:
            log.warning("cancel_not_delivered", op=op, node=node, reason=error.message)
        except Exception:
            log.exception("cancel_broke", op=op, node=node)
        finally:
            self._cancelling.discard(key)
