"""Fetches what links in messages lead to, where an admin has allowed it. The addresses are those of
strangers: core.reach says which of them are dialled, at each redirect again."""

import base64
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urljoin, urlsplit

import aiohttp
import anyio
from aiohttp.abc import AbstractResolver
from anyio.lowlevel import checkpoint

from remuda import __version__
from remuda.core.errors import Invalid, TooLarge, in_field
from remuda.core.reach import AddressRange
from remuda.gateway.inference.media_links import LinkedContent, MediaLink, links_in, put_in_place
from remuda.host.outbound import AddressRefused, Outbound, open_outbound, proxy_for
from remuda.inference.media_requests import MediaRequest
from remuda.inference.model import Request
from remuda.router.loading import Overloaded

REDIRECTS_MAX: Final = 3
TOGETHER_BYTES_MAX: Final = 32 << 20  # Of all links of one request.
WHOLE_S: Final = 30.0  # For all links of one request.
CONNECT_S: Final = 10.0
REQUESTS_MAX: Final = 8  # With links that are fetched at the same time.
_ENCODED_BYTES: Final = 384 << 10  # At once; a multiple of three.
_HEADERS: Final = {"User-Agent": f"remuda/{__version__}", "Accept-Encoding": "identity"}
_MEDIA_TYPE: Final = re.compile(r"(?:image|audio|video)/[A-Za-z0-9.+-]{1,40}", re.ASCII)
_KINDS: Final = {"image_url": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}
_SOUND_FORMATS: Final = {
    "mpeg": "mp3",
    "mp3": "mp3",
    "wav": "wav",
    "x-wav": "wav",
    "wave": "wav",
    "vnd.wave": "wav",
}
_HINT: Final = "send the content itself, as a data: URL"


class LinkFetcher:
    """`outbound` is None where links are not fetched. `named_from`: where those who send links are."""

    def __init__(
        self, outbound: Outbound | None = None, named_from: AddressRange = AddressRange.ORDINARY
    ) -> None:
        self.allowed = outbound is not None
        self._outbound = outbound
        self._named_from = named_from
        self._at_work = 0

    async def fetch(self, request: Request | MediaRequest) -> Sequence[LinkedContent]:
        """What the links of the request lead to, put in their place. Invalid where it cannot be had."""
        links = links_in(request)
        if not links:
            return ()
        if self._outbound is None:
            with in_field(links[0].place):
                raise Invalid(f"{links[0].place} is a link, and links are not fetched here", hint=_HINT)
        if self._at_work >= REQUESTS_MAX:
            raise Overloaded("too many requests with links are under way", hint="try again in a while")
        self._at_work += 1
        try:
            contents = await self._contents(self._outbound, links)
        finally:
            self._at_work -= 1
        put_in_place(request, contents)
        return contents

    async def _contents(self, outbound: Outbound, links: Sequence[MediaLink]) -> Sequence[LinkedContent]:
        contents, left_bytes = list[LinkedContent](), TOGETHER_BYTES_MAX
        with anyio.move_on_after(WHOLE_S):
            for link in links:
                with in_field(link.place):
                    media_type, content = await self._get(outbound, link, left_bytes)
                    left_bytes -= len(content)
                    contents.append(await _content(link, media_type, content))
            return contents
        late = links[len(contents)].place
        raise Invalid(f"{late} did not come within {WHOLE_S:.0f} s", hint=_HINT, param=late)

    async def _get(self, outbound: Outbound, link: MediaLink, bytes_max: int) -> tuple[str, bytes]:
        url = link.url
        try:
            for _ in range(REDIRECTS_MAX + 1):
                session = await self._session(outbound, url)
                timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
                async with session.get(
                    url, headers=_HEADERS, timeout=timeout, allow_redirects=False
                ) as answer:
                    if answer.status in (301, 302, 303, 307, 308):
                        url = urljoin(url, answer.headers.get("Location", ""))
                        continue
                    if answer.status != 200:
                        raise Invalid(f"{link.place}: its server answered {answer.status}", hint=_HINT)
                    return answer.headers.get("Content-Type", ""), await _body(answer, link, bytes_max)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            reason = f": {cause.strerror}" if isinstance(cause, AddressRefused) else ""
            raise Invalid(f"{link.place} cannot be fetched{reason}", hint=_HINT) from None
        raise Invalid(f"{link.place} redirects more than {REDIRECTS_MAX} times", hint=_HINT)

    async def _session(self, outbound: Outbound, url: str) -> aiohttp.ClientSession:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host:
            raise AddressRefused("it leads to something else than a web address")
        proxied = proxy_for(parts.scheme, host) is not None
        return await outbound.session(host, self._named_from, proxied=proxied)


async def _body(answer: aiohttp.ClientResponse, link: MediaLink, bytes_max: int) -> bytes:
    pieces, size = list[bytes](), 0
    async for piece in answer.content.iter_any():
        size += len(piece)
        if size > bytes_max:
            raise TooLarge(f"the links of a request may lead to {TOGETHER_BYTES_MAX >> 20} MiB together")
        pieces.append(piece)
    if not size:
        raise Invalid(f"{link.place} leads to an empty file", hint=_HINT)
    return b"".join(pieces)


async def _content(link: MediaLink, media_type: str, content: bytes) -> LinkedContent:
    kind = _KINDS[link.field]
    media_type = media_type.partition(";")[0].strip().lower()
    if _MEDIA_TYPE.fullmatch(media_type) is None or not media_type.startswith(f"{kind}/"):
        shown = media_type[:80] or "something of no type"
        raise Invalid(f"{link.place} leads to {shown}, not to {kind}/...", hint=_HINT)
    sound_format = ""
    if kind == "audio":
        subtype = media_type.partition("/")[2]
        sound_format = _SOUND_FORMATS.get(subtype, subtype)
    pieces = list[bytes]()
    for start in range(0, len(content), _ENCODED_BYTES):
        pieces.append(base64.b64encode(content[start : start + _ENCODED_BYTES]))
        await checkpoint()
    return LinkedContent(link, media_type, b"".join(pieces), sound_format)


@asynccontextmanager
async def open_link_fetcher(named_from: AddressRange) -> AsyncIterator[LinkFetcher]:
    def make_session(resolver: AbstractResolver) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(resolver=resolver, force_close=True, use_dns_cache=False)
        cookies = aiohttp.DummyCookieJar()
        return aiohttp.ClientSession(
            connector=connector, trust_env=True, cookie_jar=cookies, auto_decompress=False
        )

    async with open_outbound(make_session) as outbound:
        yield LinkFetcher(outbound, named_from)
