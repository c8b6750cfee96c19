"""The frontend as a worker sees it: six calls over HTTP, and failures a person can act on."""

import ssl
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeVar

import aiohttp
import anyio
from pydantic import BaseModel, RootModel, SecretStr
from yarl import URL

from remuda.core import limits
from remuda.core.errors import (
    Conflict,
    FrontendUnreachable,
    Invalid,
    Misconfigured,
    NodeRemoved,
    NotFound,
    Rejected,
    Unauthorized,
)
from remuda.core.ids import NodeId
from remuda.core.log import masked
from remuda.core.os_errors import NOT_HTTP, connect_trouble, without_number
from remuda.wire.codec import decode, encode
from remuda.wire.nodes import (
    TOKEN_WRONG,
    BusTrouble,
    Departure,
    Heartbeat,
    HeartbeatReply,
    ModelRow,
    NodeMessage,
    RegisterReply,
    RegisterRequest,
    error_reason,
    error_text,
)
from remuda.wire.process_keys import ROLE_HEADER, WORKER_ROLE
from remuda.worker.addresses import host_and_port, is_loopback
from remuda.worker.enrolment import takes_secrets

M = TypeVar("M", bound=BaseModel)

CALL_LIMIT = timedelta(seconds=limits.FRONTEND_CALL_S)


class _ModelRows(RootModel[Sequence[ModelRow]]):
    pass


class Frontend:
    """One frontend, one kept connection. Every call ends within `call_limit`.

    Raises FrontendUnreachable where trying again may help, and a Rejected where it does not.
    """

    def __init__(
        self,
        url: str,
        token: SecretStr | None,
        ca: Path | None = None,
        call_limit: timedelta = CALL_LIMIT,
        *,
        secret: SecretStr | None = None,
    ) -> None:
        """Raises Misconfigured for a URL or certificate authority that cannot be used. The token lets us
        register; `secret` is what later calls prove themselves with, where the frontend knows of such."""
        self._url = _checked(url)
        self._call_limit_s = call_limit.total_seconds()
        self._token = token.get_secret_value().strip() if token else ""
        if not self._token.isprintable():
            raise Misconfigured("the registration token contains a line break", hint="--token is one line")
        self._secret = secret.get_secret_value() if secret else ""
        self._bearer = self._token  # Of calls to /api/node/{id}.
        self._ca = ca
        self._trust = _verification(ca)
        self._through_proxies = not is_loopback(host_and_port(url)[0])
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """The token goes into the body too, where the contract looks for it a second time."""
        body = encode(request.model_copy(update={"token": self._token, "node_secret": self._secret}))
        try:
            reply = await self._call("POST", "register", RegisterReply, body, bearer=self._token)
        except NotFound as error:  # The name or id cannot be unknown yet: this is the wrong address.
            raise FrontendUnreachable(f"{self._url} has no registration endpoint") from error
        self._bearer = self._secret if self._secret and takes_secrets(reply) else self._token
        return reply

    async def heartbeat(self, node: NodeId, beat: Heartbeat) -> HeartbeatReply:
        return await self._call("POST", f"{node}/heartbeat", HeartbeatReply, encode(beat))

    async def bus_trouble(self, node: NodeId, trouble: BusTrouble) -> None:
        await self._call("POST", f"{node}/bus-trouble", NodeMessage, encode(trouble))

    async def drain(self, node: NodeId, departure: Departure) -> None:
        await self._call("POST", f"{node}/drain", NodeMessage, encode(departure))

    async def deregister(self, node: NodeId, departure: Departure) -> None:
        await self._call("POST", f"{node}/deregister", NodeMessage, encode(departure))

    async def models(self, node: NodeId) -> Sequence[ModelRow]:
        return (await self._call("GET", f"{node}/models", _ModelRows)).root

    async def _call(
        self,
        method: Literal["GET", "POST"],
        path: str,
        reply: type[M],
        body: bytes | None = None,
        *,
        bearer: str | None = None,
    ) -> M:
        token = self._bearer if bearer is None else bearer
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = f"{self._url}/api/node/{path}"
        try:
            with anyio.fail_after(self._call_limit_s):
                async with self._opened().request(
                    method, url, data=body, headers=headers, ssl=self._trust, allow_redirects=False
                ) as answer:
                    content = await _content(answer)
        except TimeoutError as error:
            raise FrontendUnreachable(
                f"{self._url} did not answer within {self._call_limit_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise FrontendUnreachable(f"{self._url} cannot be reached: {_why(error, self._ca)}") from error
        if answer.status == 401 and answer.headers.get(ROLE_HEADER) == WORKER_ROLE:
            raise Unauthorized(
                f"{self._url} is a worker's port, not a frontend's",
                hint="give the address of the frontend, which `remuda up` or `remuda frontend` prints there",
            )
        if not 200 <= answer.status < 300:
            raise refusal(self._url, answer.status, error_text(content), error_reason(content))
        try:
            return decode(reply, content, bytes_max=limits.FRONTEND_BODY_BYTES_MAX)
        except Rejected as error:
            raise FrontendUnreachable(
                f"what answers at {self._url} is not a frontend: {error.message}"
            ) from error

    def _opened(self) -> aiohttp.ClientSession:
        """Made by the first call: a session belongs to the loop that it is made in."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(keepalive_timeout=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),  # Each call has its own, over all.
                trust_env=self._through_proxies,
            )
        return self._session


def refusal(url: str, status: int, content: str, reason: str = "") -> Rejected | FrontendUnreachable:
    """What an answer of this status means to a worker."""
    why = "" if content == TOKEN_WRONG.error else f": {content or status}"
    match status:
        case 400 | 413 | 422:
            return Invalid(f"the frontend did not accept this node: {content or status}")
        case 401 | 403:
            return Unauthorized(
                f"{url} rejected the registration token{why}",
                hint="give the frontend's own token with --token, --token-file or REMUDA_REGISTRATION_TOKEN",
            )
        case 404 if reason == NodeRemoved.code:
            return removed_by(url)
        case 404:
            return NotFound(content or "node not found")
        case 409:
            return Conflict(content or "the frontend has another node with this name")
        case _:
            return FrontendUnreachable(f"{url} answered {status}{content and ': ' + content}")


def removed_by(url: str) -> NodeRemoved:
    return NodeRemoved(
        f"this node was removed by an administrator on {url}",
        hint=f"join again with: remuda join {url} --token TOKEN",
    )


def _checked(url: str) -> str:
    try:
        parts = URL(url)  # As strict as the calls that will be made with it.
        written = url.isprintable() and " " not in url
        usable = written and parts.scheme in ("http", "https") and bool(parts.host) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise Misconfigured(
            f"the frontend's URL {masked(url)!r} cannot be used", hint="the form is http(s)://HOST[:PORT]"
        )
    if (
        parts.user is not None or parts.password is not None
    ):  # It would take the place of the token in every call.
        raise Misconfigured(
            f"the frontend's URL {masked(url)!r} must not contain a user name",
            hint="the token is given with --token",
        )
    return url.rstrip("/")


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    """The body, or a little more than is allowed of one: whatever answers need not be a frontend."""
    content = bytearray()
    async for part in answer.content.iter_any():
        content += part
        if len(content) > limits.FRONTEND_BODY_BYTES_MAX:
            break
    return bytes(content)


def _verification(ca: Path | None) -> ssl.SSLContext | bool:
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError included: no certificate in the file.
        raise Misconfigured(
            f"the certificate authority {ca} cannot be used: {error.strerror or error}",
            hint="--ca names a PEM file",
        ) from error


def _why(error: aiohttp.ClientError | OSError, ca: Path | None) -> str:
    """The reason in words. The library's own text may be empty, or say no more than its class."""
    cause: BaseException = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, OSError) and not isinstance(cause, aiohttp.ClientError):
        trouble = connect_trouble(cause, ca)
        return masked(f"{trouble.why}; {trouble.hint}" if trouble.hint else trouble.why)
    if isinstance(error, aiohttp.ClientResponseError):
        return NOT_HTTP  # The library's text shows what came instead, which may be anything.
    return without_number(masked(str(error))) or type(error).__name__
