"""One connection to NATS, from open to lost. The only module that imports the NATS client.

It never reconnects: what follows a loss is decided in `client`.
"""

import asyncio
import errno
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NotRequired, Self, TypedDict, TypeVar

import anyio
import nats.errors
import structlog
from nats.aio.client import PING_PROTO, Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.aio.transport import TcpTransport

from remuda.bus.auth import Anonymous, BusToken, Login, Servers, UserJwt, UserPassword
from remuda.bus.credentials import signature
from remuda.bus.link import SendMessage
from remuda.bus.messages import BusUnreached, Incoming, Receiver
from remuda.core.bus_reach import UnreachedBus
from remuda.core.errors import BusRefused, BusUnusable, Invalid, TooLarge

log = structlog.get_logger(__name__)

CONNECT_LIMIT = timedelta(seconds=10)
CONFIRM_LIMIT = timedelta(seconds=5)
_CLOSE_LIMIT_S = 2.0
_NO_RESPONDERS = "503"
_VIOLATION = re.compile(r'permissions violation for (subscription|publish) to "([^"]+)"', re.IGNORECASE)
# What the client raises when the other side speaks something that is not its protocol.
_NONSENSE = (ValueError, TypeError, AttributeError)
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM)
_OPEN_PORT = "open that port on that machine (firewall), or check the address"
_DENIED = ("authorization violation", "user authentication", "account authentication")

T = TypeVar("T")


class NatsLink:
    """A live connection. Once lost it stays lost, and everything that waits on it fails at once.

    `on_lost` hears of the loss. Answers to requests that came by a lost link are tried by `elsewhere`.
    """

    def __init__(self, group: str, on_lost: Callable[["NatsLink"], None], elsewhere: SendMessage) -> None:
        self.group = group
        self.lost = False
        self.reason = ""
        self._on_lost = on_lost
        self._elsewhere = elsewhere
        self._client = _Client()
        self._subscriptions: dict[str, NatsSubscription] = {}  # By their receiver's key.
        self._refused: set[str] = set()  # Subjects that may not be subscribed to.
        self._waiting: dict[anyio.CancelScope, tuple[str, str]] = {}
        self._last_error: Exception | None = None
        self._work = 0
        self._idle = anyio.Event()

    async def open(self, servers: Servers, login: Login, *, name: str, tls: ssl.SSLContext | None) -> Self:
        """Connect and log in. Raises BusUnusable, or BusRefused when the credentials are not accepted."""
        self._client.tls_demanded = tls is not None
        try:
            with anyio.fail_after(CONNECT_LIMIT.total_seconds()):
                await self._client.connect(
                    list(servers.urls),
                    name=name,
                    error_cb=self._on_error,
                    closed_cb=self._on_closed,
                    tls=tls,
                    allow_reconnect=False,
                    # With reconnecting off these still rule the first connect: each server is tried twice.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(CONFIRM_LIMIT.total_seconds()),
                    **_options(login),
                )
            if not self._client.is_connected:  # To the client, a server that hangs up on a login is no error.
                raise ConnectionResetError
        except (OSError, nats.errors.Error, *_NONSENSE) as error:
            await self.close()
            cause = self._last_error if isinstance(error, nats.errors.NoServersError) else error
            raise _in_words(cause or error, servers, sealed=tls is not None) from error
        except BaseException:
            await self.close()
            raise
        return self

    def require(self) -> None:
        """Raises BusUnusable once the link is lost."""
        if self.lost:
            raise self._unusable()

    async def attach(self, receivers: Sequence[Receiver]) -> None:
        """Subscribe, and return when the server has agreed. Raises BusRefused when it did not.

        Links of one group share a subscription's messages between them: while one takes over from another,
        each message arrives, and arrives once.
        """
        self.require()
        try:
            for wanted in receivers:
                deliver = partial(self._deliver, wanted)
                queue = f"{self.group}.{wanted.key}" if wanted.divided else ""
                made = await self._client.subscribe(wanted.subject, queue=queue, cb=deliver)
                self._subscriptions[wanted.key] = made
        except nats.errors.BadSubjectError:
            raise Invalid(f"{wanted.subject!r} is not a subject") from None
        except nats.errors.Error as error:
            raise self._unusable() from error
        # The refusal, if any, is on the wire before the answer to the ping.
        await self.prove(CONFIRM_LIMIT)
        if refused := [one.subject for one in receivers if one.subject.lower() in self._refused]:
            raise BusRefused(
                f"the bus refuses the subscription to {', '.join(refused)}",
                hint="the credentials in use do not allow it",
            )

    async def detach(self, receiver: Receiver) -> None:
        made = self._subscriptions.pop(receiver.key, None)
        if made is not None:
            with suppress(BusUnusable, nats.errors.Error):  # A link that is lost hears nothing anyway.
                await self._unless_trouble(("", ""), made.unsubscribe())

    async def publish(self, subject: str, payload: bytes) -> None:
        self.require()
        try:
            # Where nothing drains, the client waits for room for ever; it also swallows cancellation there.
            await self._unless_trouble(("publish", subject.lower()), self._client.publish(subject, payload))
        except nats.errors.Error as error:
            raise self._cannot_send(subject, payload, error) from error
        self.require()

    async def ask(self, subject: str, payload: bytes, inbox: str, answered: anyio.Event) -> None:
        async def sent_and_answered() -> None:
            await self._client.publish(subject, payload, reply=inbox)
            await answered.wait()

        self.require()
        self._begin()
        try:
            await self._unless_trouble(("publish", subject.lower()), sent_and_answered())
        except nats.errors.Error as error:
            raise self._cannot_send(subject, payload, error) from error
        finally:
            self._end()

    async def ask_server(self, subject: str, payload: bytes, limit: timedelta) -> bytes:
        """The answer of the server itself. Raises BusUnusable when none comes in time."""
        try:
            request = self._client.request(subject, payload, timeout=limit.total_seconds())
            return (await self._unless_trouble(("publish", subject.lower()), request)).data
        except nats.errors.TimeoutError:
            raise BusUnusable(f"no answer on {subject} within {limit.total_seconds():g} s") from None
        except nats.errors.Error as error:
            raise self._cannot_send(subject, payload, error) from error

    async def round_trip(self, limit: timedelta) -> None:
        """Ping the server. Raises BusUnusable when no answer comes in time: late is not lost."""
        self.require()
        with anyio.move_on_after(limit.total_seconds()):
            return await self._unless_trouble(("", ""), self._client.ping())
        raise BusUnusable(f"the bus did not answer within {limit.total_seconds():g} s")

    async def prove(self, limit: timedelta) -> None:
        """The same, for those whose patience decides: a link that does not answer is lost."""
        try:
            await self.round_trip(limit)
        except BusUnusable as silence:
            self._lose(silence.message)
            raise

    async def retire(self, limit: timedelta) -> None:
        """Take no more messages, see open requests and answers through, then close."""
        try:
            with anyio.move_on_after(limit.total_seconds()), suppress(nats.errors.Error):
                for subscription in self._subscriptions.values():
                    await subscription.drain()  # type: ignore[no-untyped-call]
                while self._work and not self.lost:
                    self._idle = anyio.Event()
                    await self._idle.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        self._lose("closed by this side")
        with (
            anyio.CancelScope(shield=True),
            anyio.move_on_after(_CLOSE_LIMIT_S),
            suppress(OSError, nats.errors.Error),
        ):
            await self._client.close()
        self._client.abort()

    async def _deliver(self, receiver: Receiver, message: Msg) -> None:
        self._begin()
        respond = partial(self._respond, message.reply) if message.reply else None
        unheard = not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS
        receiver.offer(Incoming(message.subject, message.data, respond, unheard), self._end)

    async def _respond(self, inbox: str, payload: bytes) -> None:
        try:
            await self.publish(inbox, payload)
        except BusUnusable:  # If it was heard all the same: the first answer counts.
            await self._elsewhere(inbox, payload)

    async def _unless_trouble(self, concern: tuple[str, str], work: Awaitable[T]) -> T:
        """The work's result, unless the link is lost or `concern` is refused while it is awaited."""
        with anyio.CancelScope() as scope:
            self._waiting[scope] = concern
            try:
                return await work
            finally:
                del self._waiting[scope]
        if self.lost:
            raise self._unusable()
        raise BusRefused(f"the bus refuses the {concern[0]} to {concern[1]}")

    async def _on_error(self, error: Exception) -> None:
        if violation := _VIOLATION.search(str(error)):
            refused = (violation[1].lower(), violation[2].lower())
            log.error("bus_permission_refused", action=refused[0], subject=violation[2])
            if refused[0] == "subscription":
                self._refused.add(refused[1])
            for scope, concern in self._waiting.items():
                if concern == refused:
                    scope.cancel()
        elif isinstance(error, nats.errors.SlowConsumerError):
            log.error("bus_message_dropped", subject=error.subject)
        else:
            self._last_error = error

    async def _on_closed(self) -> None:
        self._lose(str(self._client.last_error or "the server closed the connection").removeprefix("nats: "))

    def _lose(self, reason: str) -> None:
        if self.lost:
            return
        self.lost, self.reason = True, reason
        for scope in self._waiting:
            scope.cancel()
        self._idle.set()
        self._on_lost(self)

    def _begin(self) -> None:
        self._work += 1

    def _end(self) -> None:
        self._work -= 1
        if not self._work:
            self._idle.set()

    def _unusable(self) -> BusUnusable:
        return BusUnusable(f"the bus connection is lost: {self.reason}")

    def _cannot_send(self, subject: str, payload: bytes, error: nats.errors.Error) -> Exception:
        match error:
            case nats.errors.MaxPayloadError():
                most = self._client.max_payload
                return TooLarge(f"a message of {len(payload)} bytes on {subject}: the bus takes {most}")
            case nats.errors.BadSubjectError():
                return Invalid(f"{subject!r} is not a subject")
            case _:
                return self._unusable()


class _Client(Client):
    """The stock client, mended by use of what it considers its own; tests hold each of it."""

    tls_demanded = False

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """It speaks TLS only where the server asks for it. Where we demand it, hang up instead of going on in
        the clear: at this point nothing has been said about who we are."""
        if self.tls_demanded and initial_connection and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise nats.errors.SecureConnWantedError
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """It has a queue and a task for every subscription. What takes messages here never makes it wait."""
        subscribed = self._subs.get(sid)
        if subscribed is not None and subscribed._cb is not None:
            parsed = await self._process_headers(headers)
            await subscribed._cb(self._build_message(sid, subject, reply, data, parsed))

    async def _send_ping(self, future: "asyncio.Future[bool] | None" = None) -> None:
        """It writes a ping at once, ahead of commands that wait to be flushed: the answer would prove nothing
        about a subscription made just before."""
        self._pongs.append(asyncio.Future() if future is None else future)
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    async def ping(self) -> None:
        """Its own way cancels what it waits on, and its reader dies of an answer to that."""
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._send_ping(answered)
        await asyncio.wait([answered])

    def abort(self) -> None:
        """Closing waits for what is still to be sent. On a dead link that lasts, and holds the socket."""
        if isinstance(self._transport, TcpTransport) and self._transport._io_writer is not None:
            self._transport._io_writer.transport.abort()


class _LoginOptions(TypedDict):
    user: NotRequired[str]
    password: NotRequired[str]
    token: NotRequired[str]
    user_jwt_cb: NotRequired[Callable[[], bytes]]
    signature_cb: NotRequired[Callable[[str], bytes]]


def _options(login: Login) -> _LoginOptions:
    match login:
        case Anonymous():
            return {}
        case UserPassword(user, password):
            return {"user": user, "password": password.get_secret_value()}
        case BusToken(token):
            return {"token": token.get_secret_value()}
        case UserJwt(jwt, seed):
            return {"user_jwt_cb": jwt.encode, "signature_cb": partial(signature, seed)}


def _in_words(error: Exception, servers: Servers, *, sealed: bool) -> BusRefused | BusUnusable:
    text = str(error).removeprefix("nats: ").strip("'").lower()
    if any(sign in text for sign in _DENIED):
        return BusRefused(f"the bus at {servers} does not accept our credentials: {text}")
    if not_reached := _not_reached(error, servers):
        return not_reached
    match error:
        case nats.errors.SecureConnWantedError():
            return BusUnusable(f"the bus at {servers} does not offer TLS, and TLS is demanded")
        case ssl.SSLError():
            return BusUnusable(f"TLS with the bus at {servers} failed: {error.reason or error}")
        case ConnectionError() if sealed:
            return BusUnusable(f"the bus at {servers} hung up: it may demand another client certificate")
        case ConnectionError():
            return BusUnusable(f"the bus at {servers} hung up")
        case ValueError() | TypeError() | AttributeError():
            return BusUnusable(f"what answers at {servers} is not a NATS server")
        case _:
            return BusUnusable(f"cannot connect to the bus at {servers}: {text or type(error).__name__}")


def _not_reached(error: Exception, servers: Servers) -> BusUnusable | None:
    """Why no connection came about, and what to do; None for an error of another kind."""
    match error:
        case ssl.SSLError():  # An OSError too, whose numbers mean something else.
            return None
        case ConnectionRefusedError():
            return BusUnreached(
                UnreachedBus.of(str(servers), "connection refused"),
                "check that the frontend or NATS server there runs and that its firewall has that port open",
            )
        case TimeoutError():
            return BusUnreached(UnreachedBus.of(str(servers), "no answer"), _OPEN_PORT)
        case socket.gaierror():
            return BusUnusable(f"the name in {servers} cannot be resolved")
        case OSError(errno=int(number)) if number in _UNREACHABLE:
            return BusUnreached(UnreachedBus.of(str(servers), os.strerror(number).lower()), _OPEN_PORT)
        case _:
            return None


async def ask_once(servers: Servers, login: Login, subject: str, payload: bytes, limit: timedelta) -> bytes:
    """One request on a connection of its own, for those who speak to the server itself."""

    async def nowhere(subject: str, payload: bytes) -> None:
        raise AssertionError("without subscriptions there is nothing to answer")

    link = await NatsLink("", lambda link: None, nowhere).open(servers, login, name="remuda-admin", tls=None)
    try:
        return await link.ask_server(subject, payload, limit)
    finally:
        await link.close()
