"""A bus without a server: the manners of nats-server that the rest relies on, in memory and on the loop's own
clock. For simulation. The suite in tests/contract/bus holds it to what the real one does."""

import base64
import itertools
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

import anyio
import structlog
from pydantic import BaseModel, Field

from remuda.bus.auth import Login, Servers, UserJwt
from remuda.bus.link import Link, SendMessage
from remuda.bus.messages import Incoming, Receiver
from remuda.core.clock import Clock
from remuda.core.errors import BusRefused, BusUnusable
from remuda.core.events import Notifier

log = structlog.get_logger(__name__)

_CONNECT_LIMIT = timedelta(seconds=10)
_CONFIRM_LIMIT = timedelta(seconds=5)


class _Allowed(BaseModel):
    allow: list[str] = [">"]


class _UserPart(BaseModel):
    sub: _Allowed = _Allowed()
    pub: _Allowed = _Allowed()


class _User(BaseModel):
    """What a user JWT says. Its signature is not checked: everybody here is in one process."""

    public_key: str = Field("", alias="sub")
    issued_at: int = Field(0, alias="iat")
    expires_at: int | None = Field(None, alias="exp")
    nats: _UserPart = _UserPart()


class MemoryBroker:
    """Stands for one nats-server. Hand `link` to a Bus.

    `delay_s` is asked before each message, answer and connect. Everything that a network or a server does to
    its clients is a method here: `stop` and `start`, `cut` and `mend`, `revoke`.
    """

    def __init__(
        self, clock: Clock, delay_s: Callable[[], float] = lambda: 0.0, *, jwt_demanded: bool = False
    ) -> None:
        self.links: list[MemoryLink] = []
        self._clock = clock
        self._delay_s = delay_s
        self._jwt_demanded = jwt_demanded
        self._up = True
        self._cut: set[str] = set()
        self._revoked: Mapping[str, datetime] = {}
        self._turn = itertools.count()

    def link(self, group: str, on_lost: Callable[[Link], None], elsewhere: SendMessage) -> "MemoryLink":
        return MemoryLink(self, group, on_lost, elsewhere)

    def stop(self) -> None:
        """Hang up on everybody and refuse connections until `start`."""
        self._up = False
        for link in list(self.links):
            link.lose("the server closed the connection")

    def start(self) -> None:
        self._up = True

    def cut(self, name: str) -> None:
        """What this client sends and is sent vanishes, without anybody being told."""
        self._cut.add(name)

    def mend(self, name: str) -> None:
        self._cut.discard(name)

    async def revoke(self, keys: Mapping[str, datetime]) -> None:
        """From now on these are all the revoked keys; their users are hung up on."""
        self._revoked = dict(keys)
        for link in list(self.links):
            if trouble := self._objection(link.user):
                link.lose(trouble)

    # For links.

    def reaches(self, link: "MemoryLink") -> bool:
        return link.name not in self._cut

    async def travel(self) -> None:
        await anyio.sleep(self._delay_s())

    async def admit(self, link: "MemoryLink", login: Login, servers: Servers) -> None:
        await self.travel()
        if not self.reaches(link):
            await anyio.sleep(_CONNECT_LIMIT.total_seconds())
            raise BusUnusable(f"no answer from {servers} in time")
        if not self._up:
            raise BusUnusable(f"nothing listens at {servers}")
        if self._jwt_demanded and not isinstance(login, UserJwt):
            raise BusRefused(f"the bus at {servers} does not accept our credentials: authorization violation")
        link.user = _read(login)
        if trouble := self._objection(link.user):
            raise BusRefused(f"the bus at {servers} does not accept our credentials: {trouble}")
        self.links.append(link)

    async def answer_ping(self, link: "MemoryLink", limit: timedelta) -> None:
        if self.reaches(link):
            await self.travel()
        if not self.reaches(link):
            await link.or_lost(anyio.sleep(limit.total_seconds()))
            link.require()
            raise BusUnusable(f"the bus did not answer within {limit.total_seconds():g} s")
        if trouble := self._objection(link.user):
            link.lose(trouble)
        link.require()

    async def deliver(self, link: "MemoryLink", subject: str, payload: bytes, inbox: str = "") -> int:
        """How many heard it. To one of each group, as queue groups do."""
        if not self.reaches(link) or not link.may_publish(subject):
            return 0
        await self.travel()
        chosen = list(self._chosen(subject))
        for receiver, subscription in chosen:
            receiver.receive(subscription, subject, payload, inbox)
        return len(chosen)

    async def ask(self, link: "MemoryLink", subject: str, payload: bytes, inbox: str) -> None:
        """Where nobody listens, the server itself answers so."""
        if not await self.deliver(link, subject, payload, inbox) and self.reaches(link):
            for receiver, subscription in list(self._chosen(inbox)):
                receiver.receive(subscription, inbox, b"", "", unheard=True)

    def _chosen(self, subject: str) -> Iterator[tuple["MemoryLink", Receiver]]:
        groups: dict[str, list[tuple[MemoryLink, Receiver]]] = {}
        for link in self.links:
            for subscription in link.subscriptions:
                if matches(subscription.subject, subject):
                    groups.setdefault(f"{link.group}.{subscription.key}", []).append((link, subscription))
        for members in groups.values():
            link, subscription = members[next(self._turn) % len(members)]
            if self.reaches(link):
                yield link, subscription

    def _objection(self, user: _User) -> str:
        revoked = self._revoked.get(user.public_key)
        if revoked is not None and user.issued_at <= int(revoked.timestamp()):
            return "user authentication revoked"
        if user.expires_at is not None and self._clock.now().timestamp() >= user.expires_at:
            return "user authentication expired"
        return ""


class MemoryLink:
    """Implements bus.link.Link."""

    def __init__(
        self, broker: MemoryBroker, group: str, on_lost: Callable[[Link], None], elsewhere: SendMessage
    ) -> None:
        self.group = group
        self.lost = False
        self.reason = ""
        self.name = ""
        self.user = _User()
        self.subscriptions: list[Receiver] = []
        self._broker = broker
        self._on_lost = on_lost
        self._elsewhere = elsewhere
        self._waiting: list[anyio.CancelScope] = []
        self._work = 0
        self._stirred = Notifier()

    async def open(
        self, servers: Servers, login: Login, *, name: str, tls: ssl.SSLContext | None
    ) -> "MemoryLink":
        self.name = name
        await self._broker.admit(self, login, servers)
        return self

    def require(self) -> None:
        if self.lost:
            raise BusUnusable(f"the bus connection is lost: {self.reason}")

    async def attach(self, subscriptions: Sequence[Receiver]) -> None:
        self.require()
        allowed = self.user.nats.sub.allow
        refused = [
            one.subject for one in subscriptions if not any(matches(own, one.subject) for own in allowed)
        ]
        self.subscriptions += [one for one in subscriptions if one.subject not in refused]
        await self.prove(_CONFIRM_LIMIT)
        if refused:
            raise BusRefused(
                f"the bus refuses the subscription to {', '.join(refused)}",
                hint="the credentials in use do not allow it",
            )

    async def detach(self, receiver: Receiver) -> None:
        if receiver in self.subscriptions:
            self.subscriptions.remove(receiver)

    async def publish(self, subject: str, payload: bytes) -> None:
        self.require()
        await self._broker.deliver(self, subject, payload)

    async def ask(self, subject: str, payload: bytes, inbox: str, answered: anyio.Event) -> None:
        self.require()
        if not self.may_publish(subject):
            raise BusRefused(f"the bus refuses the publish to {subject}")
        self._begin()
        try:
            await self._broker.ask(self, subject, payload, inbox)
            self.require()
            await self.or_lost(answered.wait())
        finally:
            self._end()
        if not answered.is_set():
            self.require()

    async def round_trip(self, limit: timedelta) -> None:
        self.require()
        await self._broker.answer_ping(self, limit)

    async def prove(self, limit: timedelta) -> None:
        try:
            await self.round_trip(limit)
        except BusUnusable as silence:
            self.lose(silence.message)
            raise

    async def retire(self, limit: timedelta) -> None:
        self.subscriptions.clear()
        with anyio.move_on_after(limit.total_seconds()):
            while self._work and not self.lost:
                await self._stirred.changed.wait()
        await self.close()

    async def close(self) -> None:
        self.lose("closed by this side")

    # For the broker.

    def may_publish(self, subject: str) -> bool:
        if any(matches(own, subject) for own in self.user.nats.pub.allow):
            return True
        log.error("bus_permission_refused", action="publish", subject=subject)
        return False

    def receive(
        self, subscription: Receiver, subject: str, payload: bytes, inbox: str, *, unheard: bool = False
    ) -> None:
        self._begin()
        respond = partial(self._respond, inbox) if inbox else None
        subscription.offer(Incoming(subject, payload, respond, unheard), self._end)

    def lose(self, reason: str) -> None:
        if self.lost:
            return
        self.lost, self.reason = True, reason
        if self in self._broker.links:
            self._broker.links.remove(self)
        for scope in self._waiting:
            scope.cancel()
        self._stirred.notify()
        self._on_lost(self)

    async def or_lost(self, work: Awaitable[object]) -> None:
        """Await the work, or the loss of this link."""
        with anyio.CancelScope() as scope:
            self._waiting.append(scope)
            try:
                await work
            finally:
                self._waiting.remove(scope)

    async def _respond(self, inbox: str, payload: bytes) -> None:
        try:
            await self.publish(inbox, payload)
        except BusUnusable:  # If it was heard all the same: the first answer counts.
            await self._elsewhere(inbox, payload)

    def _begin(self) -> None:
        self._work += 1

    def _end(self) -> None:
        self._work -= 1
        self._stirred.notify()


def matches(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` hears `subject`: `*` is one token, `>` at the end all the rest."""
    if pattern == subject:
        return True
    wanted, said = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(said) >= len(wanted) and _same(wanted[:-1], said)
    return len(said) == len(wanted) and _same(wanted, said)


def _same(wanted: Sequence[str], said: Sequence[str]) -> bool:
    return all(one in ("*", other) and other != ">" for one, other in zip(wanted, said, strict=False))


def _read(login: Login) -> _User:
    if not isinstance(login, UserJwt):
        return _User()
    payload = login.jwt.split(".")[1]
    return _User.model_validate_json(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
