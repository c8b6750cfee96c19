"""HTTP as registries need it: how each is reached (scheme, mirrors, authority), which requests are
repeated and when, redirects followed by hand, no deadline on bytes that keep coming, and what an answer
or a refusal means.

The only module that knows the HTTP library. `Transport` itself repeats nothing: callers do, by
`RetryBudget`.
"""

import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NoReturn

import aiohttp
import anyio
import structlog
from aiohttp.abc import AbstractResolver
from pydantic import BaseModel, SecretStr, ValidationError
from yarl import URL

from remuda.core.entropy import Entropy
from remuda.core.errors import Forbidden, Misconfigured, NotFound, Rejected, RemudaError, Unauthorized
from remuda.core.os_errors import os_reason
from remuda.core.retry import Backoff
from remuda.host.outbound import AddressRefused, Outbound, UnusualAddress, open_outbound, proxy_for
from remuda.oci import limits
from remuda.oci.errors import (
    AskedToWait,
    ContentRefused,
    RegistryBusy,
    RegistryFailed,
    UnknownHost,
    Unreached,
)
from remuda.oci.pauses import FetchPause, paused
from remuda.oci.reference import DOCKER_HUB

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    attempts_max: int = limits.ATTEMPTS_MAX
    backoff: Backoff = limits.BACKOFF
    retry_after_max: timedelta = limits.RETRY_AFTER_MAX


class RetryBudget:
    """Of one piece of work. Attempts that bring something forward do not wear it out."""

    def __init__(self, policy: RetryPolicy, entropy: Entropy, what: str) -> None:
        self._policy = policy
        self._entropy = entropy
        self._what = what
        self._failures = 0

    def renew(self) -> None:
        self._failures = 0

    async def pause(self, failure: RegistryFailed) -> None:
        """Wait before the next attempt; raises `failure` when there should be none."""
        self._failures += 1
        wait = self._policy.backoff.delay(self._failures, self._entropy.fraction())
        retry_after = failure.retry_after if isinstance(failure, RegistryBusy) else None
        if retry_after is not None and retry_after > self._policy.retry_after_max:
            hint = f"try again then, or {failure.hint}" if failure.hint else "try again then"
            raise AskedToWait(failure.message, retry_after, hint=hint) from failure
        if isinstance(failure, AskedToWait) or self._failures >= self._policy.attempts_max:
            raise failure
        pause_s = max(wait, retry_after or timedelta()).total_seconds()
        log.info("fetch_paused", what=self._what, reason=failure.message, pause_s=round(pause_s, 3))
        with paused(FetchPause(failure.message, self._failures + 1, self._policy.attempts_max)):
            await anyio.sleep(pause_s)


def parse_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """Seconds or a date; None when it is absent or neither."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return timedelta(seconds=min(int(text.strip()[:9]), 10**9))
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(at.replace(tzinfo=at.tzinfo or UTC) - now, timedelta())


_API_HOSTS = {DOCKER_HUB: "registry-1.docker.io"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server that may hold a registry's images. Credentials are looked up under `registry`."""

    registry: str
    base: URL


@dataclass(frozen=True, slots=True)
class Registries:
    """`insecure` are spoken to in clear text, as loopback addresses are. `mirrors` are asked first, in order;
    each is HOST[:PORT], or a URL where the scheme matters."""

    insecure: frozenset[str] = frozenset()
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ca: Path | None = None
    """PEM file of an authority that is trusted beside the system's."""

    def endpoints(self, registry: str) -> tuple[Endpoint, ...]:
        return tuple(self._endpoint(name) for name in (*self.mirrors.get(registry, ()), registry))

    def may_be_plain(self, url: URL) -> bool:
        """Whether clear text is acceptable to this host."""
        return is_loopback(url.host or "") or bool({url.host, url.authority} & self.insecure)

    def named(self, url: URL) -> bool:
        """Whether the settings name this host themselves."""
        places = {url.host, url.authority}
        mirrors = (self._endpoint(name).base for names in self.mirrors.values() for name in names)
        return bool(places & self.insecure) or any(mirror.authority == url.authority for mirror in mirrors)

    def _endpoint(self, name: str) -> Endpoint:
        if "://" in name:
            base = URL(name)
            return Endpoint(base.authority, base.origin())
        host = _API_HOSTS.get(name, name)
        secure = URL(f"https://{host}")
        plain = URL(f"http://{host}")
        return Endpoint(name, plain if self.may_be_plain(plain) else secure)


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_NO_SUCH_HOST = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_USER_AGENT = "remuda"
_HINT = "a server sent us there; if that is meant, add {} to insecure-registries"


class Response:
    """An answer whose body has not been read yet. `url` is where it came from, after redirects."""

    def __init__(self, response: aiohttp.ClientResponse, url: URL, idle_read_s: float) -> None:
        self._response = response
        self._idle_read_s = idle_read_s
        self.url = url

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def body(self, bytes_max: int, what: str) -> bytes:
        """All of it. ContentRefused when it is larger than anything `what` may be."""
        parts: list[bytes] = []
        size = 0
        async for part in self.chunks():
            parts.append(part)
            size += len(part)
            if size > bytes_max:
                raise ContentRefused(f"{what} is larger than {bytes_max} bytes")
        return b"".join(parts)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Whatever has arrived since the last one: while the caller is busy, the buffer fills."""
        content = self._response.content
        with _in_our_words(self.url, self._idle_read_s):
            try:
                while chunk := await content.readany():
                    yield chunk
            except (aiohttp.ClientError, OSError):
                # The library drops what had arrived before a break. On a link that breaks often that is all
                # there is, and a download that lost it each time would never end.
                if rest := content._read_nowait(-1):
                    yield rest
                raise


class Transport:
    """Connections to any number of hosts. Opened by `open_transport`."""

    def __init__(
        self, outbound: Outbound, registries: Registries, through_proxies: bool, idle_read_s: float
    ) -> None:
        self._outbound = outbound
        self._registries = registries
        self._through_proxies = through_proxies
        self._idle_read_s = idle_read_s

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str] | None = None,
        authorization: SecretStr | None = None,
        form: Mapping[str, str] | None = None,
        named_by: URL | None = None,
        relative_only: bool = False,
    ) -> AsyncIterator[Response]:
        """One exchange, any status. `authorization` never leaves the origin of `url`, redirects or not.

        With `relative_only` an answer that redirects to a whole address is returned as it is.
        `named_by` is the server that sends us there, if it was not an admin: it cannot send us to loopback or
        link-local addresses unless it is at one itself.
        """
        origin, own = url.origin(), (named_by or url).host
        async with AsyncExitStack() as stack:
            for _ in range(limits.REDIRECTS_MAX + 1):
                sent = dict(headers or {})
                if authorization is not None and url.origin() == origin:
                    sent["Authorization"] = authorization.get_secret_value()
                with _in_our_words(url, self._idle_read_s):
                    session, proxy = await self._session(url, named_by, own), self._proxy(url)
                    exchange = session.request(
                        method, url, headers=sent, data=form, allow_redirects=False, proxy=proxy
                    )
                    response = await stack.enter_async_context(exchange)
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None or form is not None:
                    yield Response(response, url, self._idle_read_s)
                    return
                if relative_only and ("://" in location or location.startswith("//")):
                    yield Response(response, url, self._idle_read_s)
                    return
                await stack.aclose()
                named_by, url = url, self._redirected(url, location)
            raise RegistryFailed(f"{origin.host} redirects more than {limits.REDIRECTS_MAX} times")

    async def _session(self, url: URL, named_by: URL | None, own: str | None) -> aiohttp.ClientSession:
        """`own` is the host that an admin has named."""
        host, proxied = url.host or "", self._proxy(url) is not None
        if named_by is None or url.host == own or self._registries.named(url):
            return await self._outbound.session(host, None, proxied=proxied)
        named_from = self._outbound.range_of(named_by.host or "", proxied=self._proxy(named_by) is not None)
        return await self._outbound.session(host, named_from, proxied=proxied)

    def _redirected(self, url: URL, location: str) -> URL:
        try:
            # Taken as written: signed addresses break when their escapes are tidied up.
            target = url.join(URL(location, encoded=True))
        except ValueError as error:
            raise RegistryFailed(f"{url.host} redirects to an address that cannot be used") from error
        if target.scheme not in ("http", "https"):
            raise Misconfigured(
                f"{url.host} redirects to a {target.scheme}: address; only http and https are followed"
            )
        safe = target.scheme == "https" or (target.scheme == "http" and url.scheme == "http")
        if not target.host or not (
            safe or (target.scheme == "http" and self._registries.may_be_plain(target))
        ):
            raise Misconfigured(
                f"{url.host} redirects to {target.scheme}://{target.host}, which is not encrypted",
                hint=f"if this is meant, add {target.authority} to insecure-registries",
            )
        return target

    def _proxy(self, url: URL) -> str | None:
        if not self._through_proxies or url.host is None or is_loopback(url.host):
            return None
        return proxy_for(url.scheme, url.host)


@asynccontextmanager
async def open_transport(
    registries: Registries, *, through_proxies: bool = True, idle_read_s: float = limits.IDLE_READ_S
) -> AsyncIterator[Transport]:
    """Misconfigured when the certificate authority's file cannot be used."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.CONNECT_S, sock_read=idle_read_s)
    trust = _trust(registries)

    def make_session(resolver: AbstractResolver) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=trust, limit=0, limit_per_host=limits.CONNECTIONS_PER_HOST_MAX, resolver=resolver
            ),
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # Digests are of bytes as they travel.
            read_bufsize=limits.READ_BUFFER_BYTES,
            headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"},
        )

    async with open_outbound(make_session) as outbound:
        yield Transport(outbound, registries, through_proxies, idle_read_s)


def _trust(registries: Registries) -> ssl.SSLContext | bool:
    """True: the system's authorities. The library has made a context of them already."""
    if registries.ca is None:
        return True
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(registries.ca)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(
            f"{registries.ca} cannot be used as a certificate authority: {error.strerror or 'not PEM'}"
        ) from error
    return context


@contextmanager
def _in_our_words(url: URL, idle_read_s: float) -> Iterator[None]:
    """Addresses are cut to host and port: paths and queries of blob storage hold signatures."""
    place = url.authority
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        raise Misconfigured(
            f"the certificate of {place} is not trusted: {error.certificate_error}",
            hint="name the file of the authority that signed it with registry-ca (REMUDA_REGISTRY_CA)",
        ) from None
    except aiohttp.ClientConnectorSSLError:
        raise Misconfigured(f"{place} does not speak HTTPS", hint=_plain_http_hint(url)) from None
    except UnusualAddress as error:
        raise Misconfigured(f"{place} is not asked: {error.strerror}") from None
    except AddressRefused as error:
        raise Misconfigured(f"{place} is not asked: {error.strerror}", hint=_HINT.format(place)) from None
    except (TimeoutError, aiohttp.ClientConnectorError) as error:
        raise _not_reached(url, error, idle_read_s) from error
    except aiohttp.ClientPayloadError as error:
        raise RegistryFailed(f"{place} broke the connection in the middle of an answer") from error
    except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
        raise RegistryFailed(f"{place} {_what_broke(error)}") from error


def _what_broke(error: Exception) -> str:
    """After it could be reached."""
    match error:
        case aiohttp.ClientResponseError():
            return "sent an answer that is not valid HTTP"
        case aiohttp.ServerDisconnectedError():
            return "closed the connection without an answer"
        case ssl.SSLError():
            return f"broke TLS: {error.reason or type(error).__name__}"
        case OSError():
            return f"broke the connection: {os_reason(error)}"
    return f"cannot be understood: {type(error).__name__}"


def _not_reached(
    url: URL, error: TimeoutError | aiohttp.ClientConnectorError, idle_read_s: float
) -> RemudaError:
    place = url.authority
    match error:
        case aiohttp.ConnectionTimeoutError():
            why = f"no answer within {limits.CONNECT_S:g} s"
            hint = _plain_http_hint(url) if _is_registry(url) else ""
            return Unreached(f"{place} cannot be reached: {why}", hint=hint)
        case TimeoutError():
            return Unreached(f"no answer from {place} within {idle_read_s:g} s")
    cause = error.os_error
    if isinstance(cause, AddressRefused):
        return Misconfigured(f"{place} is not asked: {cause.strerror}", hint=_HINT.format(place))
    if isinstance(cause, socket.gaierror) and cause.errno in _NO_SUCH_HOST:
        return UnknownHost(f"{place} cannot be reached: there is no host {url.host}")
    # A server of plain HTTP may hang up at the first bytes of TLS.
    hint = _plain_http_hint(url) if isinstance(cause, ConnectionResetError) else ""
    return Unreached(f"{place} cannot be reached: {os_reason(cause)}", hint=hint)


def _plain_http_hint(url: URL) -> str:
    if url.scheme != "https":
        return ""
    if not _is_registry(url):
        return "if it is meant to be reached over plain HTTP, give its address with http://"
    return (
        f"if it is a registry over plain HTTP, add {url.authority} to insecure-registries "
        "(REMUDA_INSECURE_REGISTRIES) of the frontend and of each worker"
    )


def _is_registry(url: URL) -> bool:
    return url.path.startswith("/v2/")


_SAID_CHARS_MAX = 300


class _Error(BaseModel):
    code: str = ""
    message: str = ""


class _Errors(BaseModel):
    errors: tuple[_Error, ...] = ()


async def raise_for_status(answer: Response, what: str, now: datetime) -> NoReturn:
    """Raise what an answer of an unwanted status means; `what` was asked for."""
    detail = await _said(answer)
    raise _meaning(answer.status, what, detail and f": {detail}", answer.headers.get("Retry-After"), now)


def _meaning(status: int, what: str, detail: str, retry_after: str | None, now: datetime) -> RemudaError:
    match status:
        case 401:
            return Unauthorized(f"the server refuses {what} with status 401{detail}")
        case 403:
            return Forbidden(f"the server refuses {what} with status 403{detail}")
        case 404:
            return NotFound(
                f"{what} does not exist{detail}", hint="check the name, and log in if it is private"
            )
        case 429 | 503:
            why = "too many requests" if status == 429 else "not available now"
            return RegistryBusy(f"{what}: {why}{detail}", parse_retry_after(retry_after, now))
        case _ if status in (408, 425) or status >= 500:
            return RegistryFailed(f"{what}: the answer was status {status}{detail}")
        case _:
            return Rejected(f"{what}: the answer was status {status}{detail}")


async def _said(answer: Response) -> str:
    """The first thing a registry says in the form they all use; empty when it says nothing so."""
    try:
        body = await answer.body(limits.ERROR_BYTES_MAX, "an error message")
        errors = _Errors.model_validate_json(body).errors
    except (ValidationError, ContentRefused, RegistryFailed):
        return ""
    text = (errors[0].message or errors[0].code) if errors else ""
    return "".join(char if char.isprintable() else " " for char in text[:_SAID_CHARS_MAX])


_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(?:(\d{1,18})|\*)")


@dataclass(frozen=True, slots=True)
class BodyStream:
    """`offset` is where it begins; `total` the size of the whole, where the server said so. `mirror` is who
    sends it, unless that is the place whose word counts."""

    offset: int
    total: int | None
    chunks: Callable[[], AsyncIterator[bytes]]
    mirror: str = ""


def range_header(offset: int) -> Mapping[str, str]:
    return {"Range": f"bytes={offset}-"} if offset else {}


def stream_of(answer: Response, what: str, mirror: str = "") -> BodyStream:
    """The body of a 200, 206 or 416. The last has none: the whole is no longer than what was skipped."""
    if answer.status == 200:
        length = answer.headers.get("Content-Length", "")
        return BodyStream(0, int(length) if length.isdecimal() else None, answer.chunks, mirror)
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    if answer.status == 416:
        return BodyStream(0, int(found[2]) if found and found[2] else None, _nothing, mirror)
    if found is None or found[1] is None:
        raise RegistryFailed(f"{answer.url.host} sent a part of {what} without saying which")
    return BodyStream(int(found[1]), int(found[2]) if found[2] else None, answer.chunks, mirror)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield  # Makes this a generator.
