"""The bus as the rest of the system sees it: connected for as long as it runs, or visibly trying to be.

Requests that wait for their replies belong to the bus, not to one of its connections: a reply is matched
whichever connection it arrives on.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import anyio
import anyio.abc
import structlog

from remuda.bus.auth import Anonymous, AuthSource, TlsFiles, parse_servers
from remuda.bus.link import Link, MakeLink
from remuda.bus.messages import (
    QUEUE_LIMIT,
    BusUnreached,
    Connected,
    Connecting,
    Down,
    Handler,
    Incoming,
    LinkState,
    NoResponders,
    Receiver,
    RequestTimedOut,
    Subscription,
    Taker,
    Tap,
)
from remuda.bus.nats import NatsLink
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import BusUnusable, RemudaError
from remuda.core.events import Notifier
from remuda.core.retry import Backoff
from remuda.core.tasks import TaskOwner
from remuda.wire import subjects

_QUESTION_BYTES = 16  # They cannot be guessed.


@dataclass(eq=False, slots=True)
class Question:
    inbox: str
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Incoming | None = None


class Inbox:
    """Implements Receiver. `asker` is part of every inbox: one subscription hears all answers to it."""

    divided = False  # Only undivided subscriptions get the server's "no responders".

    def __init__(self, asker: str, key: str, entropy: Entropy) -> None:
        self.subject = subjects.replies_to(asker)
        self.key = key
        self.dropped = 0
        self._asker = asker
        self._entropy = entropy
        self._waiting: dict[str, Question] = {}

    @contextmanager
    def question(self, subject: str) -> Iterator[Question]:
        """For a request on this subject; an answer that comes after the block is dropped."""
        unique = self._entropy.token(_QUESTION_BYTES)
        question = Question(subjects.reply(subjects.node_of_request(subject), self._asker, unique))
        self._waiting[question.inbox] = question
        try:
            yield question
        finally:
            del self._waiting[question.inbox]

    def offer(self, message: Incoming, done: Callable[[], None]) -> None:
        """The first answer counts."""
        question = self._waiting.get(message.subject)
        if question is not None and question.answer is None:
            question.answer = message
            question.answered.set()
        done()

    def close(self) -> None:
        self._waiting.clear()


log = structlog.get_logger(__name__)

_RETIREMENT = timedelta(hours=1)
_ANSWER_LATER_S = 600.0
_LOSS_NOTED_S = 0.1  # A link can be unusable a moment before its loss is noted: meanwhile others have to run.


@dataclass(frozen=True, slots=True)
class BusTimeouts:
    """How a connection is watched: one that falls silent is given up after both spans together."""

    ping_every: timedelta = timedelta(seconds=5)
    answer_within: timedelta = timedelta(seconds=8)


DEFAULT_TIMEOUTS = BusTimeouts()
BUS_BACKOFF = Backoff(timedelta(milliseconds=200), timedelta(seconds=10))


class Bus:
    """One connection's owner. `run` keeps it; everything else may be called from any task meanwhile."""

    def __init__(
        self,
        servers: str,
        auth: AuthSource,
        *,
        name: str,
        backoff: Backoff,
        entropy: Entropy,
        clock: Clock,
        tls: TlsFiles | None = None,
        timeouts: BusTimeouts = DEFAULT_TIMEOUTS,
        make_link: MakeLink = NatsLink,
    ) -> None:
        """Raises Misconfigured for an address or TLS files that cannot be used."""
        self._auth = auth
        self._name = name
        self._backoff = backoff
        self._entropy = entropy
        self._clock = clock
        self._timeouts = timeouts
        self._make_link = make_link
        self._tls_files = tls or TlsFiles()
        self._aim_at(servers)
        self._state: LinkState = Connecting(clock.now())
        self._changes = Notifier()
        self._wake = anyio.Event()
        self._link: Link | None = None
        self._receivers: list[Receiver] = []
        self._inbox = Inbox(f"{name}-{entropy.token(6)}", entropy.token(9), entropy)
        self._inbox_turn = anyio.Lock()
        self._tasks = TaskOwner()

    @property
    def state(self) -> LinkState:
        return self._state

    @property
    def servers(self) -> str:
        """Where it connects to, without credentials."""
        return str(self._servers)

    @property
    def changed(self) -> anyio.Event:
        """Set at the next change of state. Take it before looking at the state, and no change is missed."""
        return self._changes.changed

    @property
    def dropped(self) -> int:
        """Messages lost to full queues."""
        return sum(receiver.dropped for receiver in self._receivers)

    async def wait_connected(self) -> None:
        while not isinstance(self._state, Connected):
            await self._changes.changed.wait()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Connect and stay connected until cancelled. Reports started at once: see `wait_connected`."""
        async with self._tasks.open():
            task_status.started()
            try:
                await self._keep_connected()
            finally:
                await self._close()

    def rotate(self, servers: str | None = None) -> None:
        """Credentials, or the address too, have changed: move over to a new connection, missing nothing.

        While the bus is down this only cuts the wait for the next attempt short.
        """
        if servers is not None:
            self._aim_at(servers)
        self._wake.set()

    async def subscribe(
        self, subject: str, handler: Handler, *, concurrent: bool = False, queue_limit: int = QUEUE_LIMIT
    ) -> None:
        """Hand every message on the subject to `handler`, from now on and across reconnects.

        Returns when the server has confirmed it, however long the bus is down before that. Raises BusRefused
        when the server refuses. `concurrent` and the full queue are Subscription's to explain.
        """
        await self.wait_connected()
        key = self._entropy.token(9)
        subscription = Subscription(subject, handler, key, concurrent=concurrent, queue_limit=queue_limit)
        self._tasks.start(subscription.run)
        await self._attach(subscription)

    async def tap(self, subject: str, take: Taker) -> Callable[[], Awaitable[None]]:
        """Hand every message on the subject to `take` in the moment it is read, until the way back is called.
        Returns and raises like `subscribe`; what `take` does holds up whatever else is read.
        """
        await self.wait_connected()
        tap = Tap(subject, take, self._entropy.token(9))
        await self._attach(tap)
        return partial(self._untap, tap)

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send and forget: delivery is not confirmed. Raises BusUnusable while the bus is down."""
        await self._connected().publish(subject, payload)

    async def request(
        self, subject: str, payload: bytes, limit: timedelta, *, on_gap: Callable[[], None] | None = None
    ) -> bytes:
        """The first answer.

        Raises NoResponders, RequestTimedOut, BusRefused, and BusUnusable if the bus is down or goes down.
        With `on_gap` a connection that goes down ends nothing: that is called instead, for the answer may
        have been missed, and one that comes when the bus is back counts.
        """
        await self._open_inbox()
        link = self._connected()
        with self._inbox.question(subject) as question, anyio.move_on_after(limit.total_seconds()):
            try:
                await link.ask(subject, payload, question.inbox, question.answered)
            except BusUnusable:
                if on_gap is None:
                    raise
                on_gap()
                await question.answered.wait()
        return _answer(question, subject, limit)

    async def _open_inbox(self) -> None:
        """Confirmed before the first request; after that every new link has it from its beginning."""
        self._connected()
        async with self._inbox_turn:
            if self._inbox not in self._receivers and not await self._stands(self._inbox):
                raise BusUnusable("the bus connection was lost before anything was sent")

    async def round_trip(self, limit: timedelta) -> timedelta:
        """How long the server takes to answer a ping. Raises BusUnusable when that is longer than `limit`."""
        began_s = self._clock.monotonic()
        await self._connected().round_trip(limit)
        return timedelta(seconds=self._clock.monotonic() - began_s)

    async def _close(self) -> None:
        link, self._link = self._link, None
        self._become(Down("closed by this side", self._clock.now()))
        for receiver in self._receivers:
            receiver.close()
        if link is not None:
            await link.close()

    def _aim_at(self, servers: str) -> None:
        self._servers = parse_servers(servers)
        tls_wanted = self._tls_files.wanted or self._servers.tls
        self._tls = self._tls_files.context() if tls_wanted else None

    def _connected(self) -> Link:
        match self._state:
            case Connected():
                assert self._link is not None, "connected means that there is a link"
                return self._link
            case Down(reason):
                raise BusUnusable(f"the bus is down: {reason}")
            case Connecting():
                raise BusUnusable("the bus is not connected yet")

    async def _attach(self, receiver: Receiver) -> None:
        try:
            while not await self._stands(receiver):
                await anyio.sleep(_LOSS_NOTED_S)
                await self.wait_connected()
        except BaseException:
            receiver.close()
            raise

    async def _stands(self, receiver: Receiver) -> bool:
        """Whether it could be attached to the link in use."""
        try:
            link = self._connected()
            await link.attach([receiver])
        except BusUnusable:
            return False
        if link is not self._link:
            return False
        self._receivers.append(receiver)  # From now on `_open` carries it over.
        return True

    async def _untap(self, tap: Tap) -> None:
        tap.close()
        if tap in self._receivers:
            self._receivers.remove(tap)
        if self._link is not None:
            await self._link.detach(tap)

    async def _keep_connected(self) -> None:
        attempt = 0
        while True:
            self._wake = anyio.Event()
            try:
                link = await self._open()
            except RemudaError as trouble:
                attempt += 1
                await self._prove_link_in_use()
                self._note_failure(trouble)
                await self._pause(attempt)
                continue
            self._take_into_use(link)
            since = self._clock.monotonic()
            await self._watch(link)
            if not link.lost:
                attempt = 0
                continue
            await link.close()  # It may be lost to us and still open.
            # A link that dies young is no success, or a server that accepts and hangs up would be dialled
            # in a tight loop.
            young = self._clock.monotonic() - since < self._backoff.most.total_seconds()
            attempt = attempt + 1 if young else 1
            await self._pause(attempt)

    async def _open(self) -> Link:
        """A new link on which every subscription is confirmed."""
        login = self._auth()
        if isinstance(login, Anonymous) and self._servers.login is not None:
            login = self._servers.login
        link = self._make_link(self._group(), self._on_lost, self._answer_later)
        await link.open(self._servers, login, name=self._name, tls=self._tls)
        try:
            confirmed: list[Receiver] = []
            while batch := [one for one in self._receivers if one not in confirmed]:  # They may become more.
                await link.attach(batch)
                confirmed += batch
            for gone in [one for one in confirmed if one not in self._receivers]:
                await link.detach(gone)
            link.require()
        except BaseException:
            await link.close()
            raise
        return link

    def _group(self) -> str:
        """A link that replaces a living one joins its group, and the two share the messages.

        After a loss the group is a new one: the server may not have noticed yet that the old link is dead,
        and would go on giving it its share.
        """
        if self._link is not None and not self._link.lost:
            return self._link.group
        return self._entropy.token(9)

    def _take_into_use(self, link: Link) -> None:
        former, self._link = self._link, link
        rotated = former is not None and not former.lost
        if former is not None:
            # One lost since the last look has not been closed yet.
            self._tasks.start(partial(former.retire, _RETIREMENT) if rotated else former.close)
        log.info("bus_connected", servers=str(self._servers), rotated=rotated)
        self._become(Connected(self._clock.now()))

    async def _watch(self, link: Link) -> None:
        """Return when the link is lost or is to be replaced. A silent link is lost within seconds."""
        while not self._wake.is_set():
            with anyio.move_on_after(self._timeouts.ping_every.total_seconds()) as quiet:
                await self._wake.wait()
            if quiet.cancelled_caught:
                with suppress(BusUnusable):  # The code that lost it has set `_wake`.
                    await link.prove(self._timeouts.answer_within)

    async def _prove_link_in_use(self) -> None:
        """What kept us from replacing a link may have silenced it as well."""
        if self._link is not None and not self._link.lost:
            with suppress(BusUnusable):
                await self._link.prove(self._timeouts.answer_within)

    async def _pause(self, attempt: int) -> None:
        self._wake = anyio.Event()
        delay = self._backoff.delay(attempt, self._entropy.fraction())
        with anyio.move_on_after(delay.total_seconds()):
            await self._wake.wait()

    def _on_lost(self, link: Link) -> None:
        if link is not self._link:
            return
        log.warning("bus_lost", reason=link.reason)
        self._become(Down(link.reason, self._clock.now()))
        self._wake.set()

    def _note_failure(self, trouble: RemudaError) -> None:
        unreached = trouble.unreached if isinstance(trouble, BusUnreached) else None
        if isinstance(self._state, Connected):  # The link that was to be replaced still serves.
            log.error("bus_rotation_failed", **_told(trouble))
            return
        known = self._state if isinstance(self._state, Down) else None
        if known is None or known.reason != str(trouble):
            log.warning("bus_connect_failed", **_told(trouble))
        self._become(Down(str(trouble), known.since if known else self._clock.now(), unreached))

    async def _answer_later(self, inbox: str, payload: bytes) -> None:
        """For answers whose link is lost: said when the bus is back, for the one who asked may still wait."""
        with anyio.move_on_after(_ANSWER_LATER_S):
            while True:
                await self.wait_connected()
                with suppress(BusUnusable):
                    return await self.publish(inbox, payload)
                await anyio.sleep(_LOSS_NOTED_S)
        raise BusUnusable("the bus was down for too long")

    def _become(self, state: LinkState) -> None:
        self._state = state
        self._changes.notify()


def _answer(question: Question, subject: str, limit: timedelta) -> bytes:
    if question.answer is None:
        raise RequestTimedOut(f"no answer on {subject} within {limit.total_seconds():g} s")
    if question.answer.unheard:
        raise NoResponders(f"the worker is not connected to the bus (no responders on {subject})")
    return question.answer.payload


def _told(trouble: RemudaError) -> dict[str, str]:
    """For the log, whose events say already that a connection did not come about."""
    if not isinstance(trouble, BusUnreached):
        return {"reason": str(trouble)}
    return {"reason": trouble.unreached.why, "hint": trouble.advice, "address": trouble.unreached.address}
