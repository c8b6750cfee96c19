"""HTTP as registries need it: redirects followed by hand, no deadline on bytes that keep coming, and failures
in our own words. The only module that knows the HTTP library. It retries nothing: that is for callers."""

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import aiohttp
from aiohttp.abc import AbstractResolver
from pydantic import SecretStr
from yarl import URL

from remuda.core.errors import Misconfigured
from remuda.core.os_errors import os_reason
from remuda.host.outbound import AddressRefused, Outbound, UnusualAddress, open_outbound, proxy_for
from remuda.oci import limits
from remuda.oci.errors import ContentRefused, RegistryFailed
from remuda.oci.registries import Registries, is_loopback

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_USER_AGENT = "remuda"
_HINT = "a registry sent us there; if that is meant, add {} to insecure-registries"


class Response:
    """An answer whose body has not been read yet. `url` is where it came from, after redirects."""

    def __init__(self, response: aiohttp.ClientResponse, url: URL) -> None:
        self._response = response
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
        with _in_our_words(self.url):
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

    def __init__(self, outbound: Outbound, registries: Registries, through_proxies: bool) -> None:
        self._outbound = outbound
        self._registries = registries
        self._through_proxies = through_proxies

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
    ) -> AsyncIterator[Response]:
        """One exchange, any status. `authorization` never leaves the origin of `url`, redirects or not.

        `named_by` is the server that sends us there, if it was not an admin: it cannot send us to loopback or
        link-local addresses unless it is at one itself.
        """
        origin, own = url.origin(), (named_by or url).host
        async with AsyncExitStack() as stack:
            for _ in range(limits.REDIRECTS_MAX + 1):
                sent = dict(headers or {})
                if authorization is not None and url.origin() == origin:
                    sent["Authorization"] = authorization.get_secret_value()
                with _in_our_words(url):
                    session, proxy = await self._session(url, named_by, own), self._proxy(url)
                    exchange = session.request(
                        method, url, headers=sent, data=form, allow_redirects=False, proxy=proxy
                    )
                    response = await stack.enter_async_context(exchange)
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None or form is not None:
                    yield Response(response, url)
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
        yield Transport(outbound, registries, through_proxies)


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
def _in_our_words(url: URL) -> Iterator[None]:
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
        raise Misconfigured(
            f"{place} does not speak HTTPS",
            hint=f"if it is a registry over plain HTTP, add {place} to insecure-registries "
            f"(REMUDA_INSECURE_REGISTRIES) of the frontend and of each worker",
        ) from None
    except UnusualAddress as error:
        raise Misconfigured(f"{place} is not asked: {error.strerror}") from None
    except AddressRefused as error:
        raise Misconfigured(f"{place} is not asked: {error.strerror}", hint=_HINT.format(place)) from None
    except TimeoutError as error:
        raise RegistryFailed(f"{place} went silent") from error
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, AddressRefused):
            reason = f"{place} is not asked: {error.os_error.strerror}"
            raise Misconfigured(reason, hint=_HINT.format(place)) from None
        raise RegistryFailed(f"{place} cannot be reached: {os_reason(error.os_error)}") from error
    except aiohttp.ClientPayloadError as error:
        raise RegistryFailed(f"{place} broke the connection in the middle of an answer") from error
    except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
        raise RegistryFailed(f"talking to {place} failed: {type(error).__name__}") from error
