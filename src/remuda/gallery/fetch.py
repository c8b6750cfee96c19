"""One index from one address: over HTTP, or from a file. It neither caches nor tries twice."""

import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

import aiohttp
import anyio
from aiohttp.abc import AbstractResolver
from anyio import to_thread

from remuda import __version__
from remuda.core.errors import Invalid, PeerFailed, TooLarge
from remuda.core.os_errors import os_reason
from remuda.gallery.index import LIMITS
from remuda.host.outbound import AddressRefused, Outbound, open_outbound, proxy_for

GITHUB_RAW: Final = "https://raw.githubusercontent.com"
REDIRECTS_MAX: Final = 5
REFERENCE_BYTES_MAX: Final = 1024
_HEADERS: Final = {
    "User-Agent": f"remuda/{__version__}",
    # A compressed index could grow without end while it is read; plain text is as long as it says.
    "Accept-Encoding": "identity",
}


@dataclass(frozen=True, slots=True)
class FetchTimeouts:
    """How long one address may take."""

    connect: timedelta = timedelta(seconds=10)
    idle: timedelta = timedelta(seconds=30)  # Between two pieces of an answer.
    whole: timedelta = timedelta(seconds=120)


@dataclass(frozen=True, slots=True)
class Validators:
    """What a server said about the copy we have, to ask whether it is still current."""

    etag: str = ""
    last_modified: str = ""

    def headers(self) -> dict[str, str]:
        named = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in named.items() if value}


@dataclass(frozen=True, slots=True)
class Fetched:
    source: str  # The address that answered, references followed.
    content: bytes
    validators: Validators


@dataclass(frozen=True, slots=True)
class Unchanged:
    source: str


@dataclass(frozen=True, slots=True)
class CachedCopy:
    """The copy we have: where it came from, and what to ask with."""

    source: str
    validators: Validators


class Fetcher:
    """`file_roots`: folders that `file:` may read from; None: any, for galleries configured right here."""

    def __init__(
        self,
        outbound: Outbound,
        *,
        timeouts: FetchTimeouts,
        file_roots: tuple[Path, ...] | None = None,
        github_raw: str = GITHUB_RAW,
    ) -> None:
        self._outbound = outbound
        self._timeouts = timeouts
        self._file_roots = file_roots
        self._github_raw = github_raw

    async def fetch(
        self, address: str, known: CachedCopy | None = None, *, named_by: str = ""
    ) -> Fetched | Unchanged:
        """The index at `address`, or word that `known` is still it. PeerFailed or Rejected otherwise.

        `named_by`: the gallery that names this address; empty: an admin does. A gallery elsewhere may name no
        file, and no address further inwards than its own."""
        gallery = located(named_by, self._github_raw) if named_by else ""
        with _deadline(self._timeouts.whole, address):
            target = located(address, self._github_raw)
            if _split(target).path.endswith(".ref"):
                reference = await self._get(target, None, REFERENCE_BYTES_MAX, gallery)
                assert isinstance(reference, Fetched), "nothing was known, so something was sent"
                target = referred(target, reference.content)
            newest = known if known and known.source == target else None
            return await self._get(target, newest, LIMITS.bytes, gallery)

    async def _get(
        self, target: str, known: CachedCopy | None, bytes_max: int, gallery: str
    ) -> Fetched | Unchanged:
        if target.startswith("file:"):
            if gallery and not gallery.startswith("file:"):
                raise Invalid(
                    f"{shown(gallery)} names the file {shown(target)}, which only a local gallery may"
                )
            content = await to_thread.run_sync(_read_file, target, self._file_roots, bytes_max)
            return Fetched(target, content, Validators())
        return await self._get_http(target, known, bytes_max, gallery)

    async def _get_http(
        self, target: str, known: CachedCopy | None, bytes_max: int, gallery: str
    ) -> Fetched | Unchanged:
        trusted = target if not gallery or gallery.startswith("file:") else gallery
        url, named_by = target, "" if trusted == target else gallery
        for _ in range(REDIRECTS_MAX + 1):
            async with self._answer(url, known, trusted, named_by) as answer:
                if answer.status == 304 and known is not None:
                    return Unchanged(target)
                if answer.status in (301, 302, 303, 307, 308):
                    named_by, url = url, redirected(url, answer.headers.get("Location", ""))
                    continue
                if answer.status != 200:
                    raise PeerFailed(f"{shown(url)} answered {answer.status} {answer.reason or ''}".rstrip())
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise PeerFailed(f"{shown(url)} sent a compressed answer, which was not asked for")
                validators = Validators(
                    answer.headers.get("ETag", ""), answer.headers.get("Last-Modified", "")
                )
                return Fetched(target, await _body(answer, url, bytes_max), validators)
        raise PeerFailed(f"{shown(target)} redirects more than {REDIRECTS_MAX} times")

    @asynccontextmanager
    async def _answer(
        self, url: str, known: CachedCopy | None, target: str, named_by: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = _HEADERS | (known.validators.headers() if known else {})
        timeout = aiohttp.ClientTimeout(
            total=None,  # Ours holds for all requests of one address together.
            connect=self._timeouts.connect.total_seconds(),
            sock_read=self._timeouts.idle.total_seconds(),
        )
        try:
            session = await self._session(url, target, named_by)
            async with session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as answer:
                yield answer
        except aiohttp.ConnectionTimeoutError:
            silence = f"no answer within {self._timeouts.connect.total_seconds():g} s"
            raise PeerFailed(f"{shown(url)} cannot be reached: {silence}") from None
        except aiohttp.ServerTimeoutError:
            silence_s = self._timeouts.idle.total_seconds()
            raise PeerFailed(f"{shown(url)} sent nothing for {silence_s:g} s") from None
        except ValueError:  # From aiohttp, and from encoding the name of a host.
            raise Invalid(f"{shown(url)} is not a web address") from None
        except (aiohttp.ClientError, OSError) as error:
            raise PeerFailed(f"{shown(url)} cannot be reached: {_in_words(error)}") from None

    async def _session(self, url: str, target: str, named_by: str) -> aiohttp.ClientSession:
        """`target` is what an admin has named. Where a redirect leads is bounded, see core.reach."""
        host, proxied = _host(url)
        if not named_by or _host(target)[0] == host:
            return await self._outbound.session(host, None, proxied=proxied)
        origin, origin_proxied = _host(named_by)
        named_from = self._outbound.range_of(origin, proxied=origin_proxied)
        return await self._outbound.session(host, named_from, proxied=proxied)


@asynccontextmanager
async def open_fetcher(
    *,
    timeouts: FetchTimeouts | None = None,
    file_roots: tuple[Path, ...] | None = None,
    github_raw: str = GITHUB_RAW,
) -> AsyncIterator[Fetcher]:
    """A fetcher with connections of its own. Proxies are taken from the environment."""

    def make_session(resolver: AbstractResolver) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(resolver=resolver)
        cookies = aiohttp.DummyCookieJar()
        return aiohttp.ClientSession(
            connector=connector, trust_env=True, cookie_jar=cookies, auto_decompress=False
        )

    async with open_outbound(make_session) as outbound:
        yield Fetcher(
            outbound, timeouts=timeouts or FetchTimeouts(), file_roots=file_roots, github_raw=github_raw
        )


def _host(url: str) -> tuple[str, bool]:
    """And whether it is asked through a proxy."""
    parts = _split(url)
    host = parts.hostname or ""
    return host, bool(host) and proxy_for(parts.scheme, host) is not None


def located(address: str, github_raw: str = GITHUB_RAW) -> str:
    """The URL behind an address: `file:`, `http(s):`, or `github:owner/repository/path@branch`."""
    scheme, _, rest = address.partition(":")
    if scheme in ("http", "https", "file"):
        return address
    if scheme != "github":
        raise Invalid(f"{shown(address)} is no address for an index", hint="use https:, file: or github:")
    place, _, branch = rest.lstrip("/").rpartition("@") if "@" in rest else (rest.lstrip("/"), "", "main")
    parts = place.split("/")
    if len(parts) < 3 or not all(parts) or not branch or ".." in parts:
        raise Invalid(f"{address} is incomplete", hint="write it as github:owner/repository/path@branch")
    owner, repository, *path = parts
    return "/".join((github_raw.rstrip("/"), owner, repository, branch, *path))


def referred(target: str, content: bytes) -> str:
    """Where a `.ref` points: a file name in the same folder as itself."""
    name = content.decode(errors="replace").strip()
    if (
        not name
        or len(name.splitlines()) > 1
        or ":" in name
        or name.startswith("/")
        or ".." in name.split("/")
    ):
        raise PeerFailed(f"{shown(target)} does not hold the name of a file beside it")
    if name.endswith(".ref"):
        raise PeerFailed(f"{shown(target)} refers to yet another reference")
    return urljoin(target, name)


def shown(url: str) -> str:
    """The address for people and logs: without a user's name and password, and without a query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition(':')[0]}:…"  # Not even its host is sure not to be its password.
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def redirected(url: str, location: str) -> str:
    """Where a redirect leads: on the web, and never from an encrypted address to a plain one."""
    try:
        target = urljoin(url, location)
    except ValueError:
        target = ""
    if not location or not target.startswith(("https:", "http:")):
        raise PeerFailed(f"{shown(url)} redirects to no web address")
    if url.startswith("https:") and target.startswith("http:"):
        raise PeerFailed(f"{shown(url)} redirects to an address that is not encrypted")
    return target


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise Invalid(f"{shown(url)} is not an address: {error}") from None


@contextmanager
def _deadline(span: timedelta, address: str) -> Iterator[None]:
    try:
        with anyio.fail_after(span.total_seconds()):
            yield
    except TimeoutError:
        raise PeerFailed(f"{shown(address)} took longer than {span.total_seconds():g} s") from None


def _in_words(error: aiohttp.ClientError | OSError) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, AddressRefused):
        return cause.strerror or ""
    if isinstance(cause, OSError):
        return os_reason(cause)
    return str(cause) or type(cause).__name__


async def _body(answer: aiohttp.ClientResponse, url: str, bytes_max: int) -> bytes:
    content = bytearray()
    async for piece in answer.content.iter_chunked(64 << 10):
        content += piece
        if len(content) > bytes_max:
            raise TooLarge(f"{shown(url)} sends more than the {bytes_max} bytes allowed")
    return bytes(content)


def _read_file(target: str, roots: tuple[Path, ...] | None, bytes_max: int) -> bytes:
    parts = _split(target)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise Invalid(f"{target} names no file", hint="write it as file:///folder/index.yaml")
    try:
        real = path.resolve(strict=True)
        if roots is not None and not any(real.is_relative_to(root.resolve()) for root in roots):
            raise Invalid(f"{path} lies outside the folders that a gallery may be read from")
        # Neither a pipe, which would hold us, nor a device, which never ends.
        with os.fdopen(os.open(real, os.O_RDONLY | os.O_NONBLOCK), "rb") as handle:
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                raise Invalid(f"{path} is not a file")
            content = handle.read(bytes_max + 1)
    except ValueError:
        raise Invalid(f"{target!r} names no file") from None
    except OSError as error:
        raise PeerFailed(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > bytes_max:
        raise TooLarge(f"{path} has more than the {bytes_max} bytes allowed")
    return content
