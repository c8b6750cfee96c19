"""A client of OCI registries: names to digests, names to images, digests to streams of bytes.

What it returns has the digest that was asked for; streams are checked as they are read to the end.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import anyio
import structlog
from yarl import URL

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Forbidden, Misconfigured, NotFound, RemudaError, Unauthorized
from remuda.oci import limits
from remuda.oci.auth import Authorizer, Form, Keys, NoKeys, pull_scope
from remuda.oci.errors import ContentRefused, PlatformMissing, RegistryFailed, Unreached
from remuda.oci.model import (
    MANIFEST_TYPES,
    Descriptor,
    Image,
    ImageConfig,
    ImageIndex,
    ImageManifest,
    Platform,
    Unfit,
    checked_digest,
    choose,
    digest_of_bytes,
    fits,
    parse_config,
    parse_manifest,
    why_unfit,
)
from remuda.oci.reference import Reference, parse_digest
from remuda.oci.transport import (
    BodyStream,
    Endpoint,
    Registries,
    Response,
    RetryBudget,
    RetryPolicy,
    Transport,
    open_transport,
    raise_for_status,
    range_header,
    stream_of,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")

_ACCEPT = {"Accept": ", ".join(MANIFEST_TYPES)}
_DIGEST_HEADER = "Docker-Content-Digest"


class RegistryClient:
    """Opened by `open_client`; safe to share between tasks."""

    def __init__(
        self,
        transport: Transport,
        registries: Registries,
        keys: Keys,
        clock: Clock,
        entropy: Entropy,
        retry: RetryPolicy,
    ) -> None:
        self.transport = transport
        self.retry = retry
        self.entropy = entropy
        self._registries = registries
        self.clock = clock
        self._authorizer = Authorizer(keys, self._ask_for_token, clock)

    async def digest_of(self, reference: Reference) -> str:
        """The digest a name stands for now. Costs no pull where registries count those."""

        async def head(endpoint: Endpoint) -> str | None:
            path = _manifest_path(reference)
            async with self._exchange(
                endpoint, "HEAD", path, reference, _ACCEPT, expected=(200, 405)
            ) as answer:
                return answer.headers.get(_DIGEST_HEADER) if answer.status == 200 else None

        digest = await self._from_any(reference, head)
        if digest is None:  # Registries need not send it, but the body has it.
            digest, _ = await self._document(reference)
        return parse_digest(digest)

    async def image(self, reference: Reference, platform: Platform) -> Image:
        """The build for this platform. PlatformMissing, saying what there is, when there is none."""
        digest, document = await self._document(reference)
        platform_digest = digest
        for _ in range(limits.INDEX_DEPTH_MAX):
            match document:
                case ImageManifest() as manifest:
                    config = await self._config(reference, manifest.config, platform)
                    return Image(
                        str(reference),
                        digest,
                        platform_digest,
                        config,
                        manifest.layers,
                        reference.pinned(digest),
                    )
                case ImageIndex(builds):
                    chosen = choose(builds, platform)
                    if isinstance(chosen, Unfit):
                        raise PlatformMissing(f"{reference}: {chosen.reason}")
                    platform_digest = chosen.digest
                    _, document = await self._document(reference.pinned(chosen.digest))
        raise ContentRefused(f"{reference} holds indexes within indexes within indexes")

    @asynccontextmanager
    async def open_blob(
        self, reference: Reference, blob: Descriptor, offset: int, turn: int, avoid: Set[str] = frozenset()
    ) -> AsyncIterator[BodyStream]:
        """The blob's bytes from `offset`, or from the start where ranges are not understood.

        `turn` says which of the registry's places is asked first; others follow when it has nothing to give.
        Mirrors in `avoid` are not asked.
        """
        *mirrors, registry = self._registries.endpoints(reference.registry)
        endpoints = [*(mirror for mirror in mirrors if mirror.registry not in avoid), registry]
        turn %= len(endpoints)
        headers = range_header(offset)
        failure: RemudaError | None = None
        async with AsyncExitStack() as stack:
            for endpoint in (*endpoints[turn:], *endpoints[:turn]):
                exchange = self._exchange(
                    endpoint,
                    "GET",
                    f"{reference.repository}/blobs/{blob.digest}",
                    reference,
                    headers,
                    what=f"{blob.digest} of {reference}",
                    expected=(200, 206, 416),
                )
                try:
                    answer = await stack.enter_async_context(exchange)
                except _ELSEWHERE as error:
                    # What may pass elsewhere outlives what has to be configured here.
                    failure = failure if failure and isinstance(error, Misconfigured) else error
                    continue
                yield stream_of(answer, blob.digest, "" if endpoint is registry else endpoint.registry)
                return
            assert failure is not None, "at least one mirror was asked"
            raise failure

    async def manifest(self, reference: Reference, parse: Callable[[bytes], T]) -> tuple[str, T]:
        """A manifest's digest, checked, and what `parse` makes of it. What it refuses is asked elsewhere."""

        async def get(endpoint: Endpoint) -> tuple[str, T]:
            path = _manifest_path(reference)
            async with self._exchange(endpoint, "GET", path, reference, _ACCEPT) as answer:
                body = await answer.body(limits.MANIFEST_BYTES_MAX, f"the manifest of {reference}")
                promised = reference.digest or answer.headers.get(_DIGEST_HEADER) or digest_of_bytes(body)
            digest = checked_digest(body, parse_digest(promised), f"the manifest of {reference}")
            return digest, parse(body)

        return await self._from_any(reference, get)

    async def small_blob(
        self, reference: Reference, blob: Descriptor, what: str, parse: Callable[[bytes], T]
    ) -> T:
        """What `parse` makes of a blob that fits into memory, checked."""

        async def get(endpoint: Endpoint) -> T:
            path = f"{reference.repository}/blobs/{blob.digest}"
            async with self._exchange(endpoint, "GET", path, reference, {}) as answer:
                body = await answer.body(limits.CONFIG_BYTES_MAX, what)
            checked_digest(body, blob.digest, what)
            return parse(body)

        return await self._from_any(reference, get)

    def blob_url(self, reference: Reference, digest: str) -> URL:
        """Where the registry itself has a blob."""
        base = self._registries.endpoints(reference.registry)[-1].base
        return base.joinpath("v2", *reference.repository.split("/"), "blobs", digest)

    async def _document(self, reference: Reference) -> tuple[str, ImageManifest | ImageIndex]:
        """A manifest or index and its digest, checked."""
        return await self.manifest(reference, lambda body: parse_manifest(body, str(reference)))

    async def _config(self, reference: Reference, config: Descriptor, platform: Platform) -> ImageConfig:
        parsed = await self.small_blob(
            reference,
            config,
            f"the configuration of {reference}",
            lambda body: parse_config(body, str(reference)),
        )
        if not fits(parsed.platform, platform):  # An image without an index says only here what it is for.
            raise PlatformMissing(f"{reference}: {why_unfit([parsed.platform], platform)}")
        return parsed

    async def _from_any(self, reference: Reference, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """The first good answer of a mirror or the registry itself, whose verdict is the one that counts."""
        retries = RetryBudget(self.retry, self.entropy, str(reference))
        endpoints = self._registries.endpoints(reference.registry)
        unusable: Misconfigured | None = None  # A mirror that could help if it were configured rightly.
        while True:
            for endpoint in endpoints:
                try:
                    with anyio.fail_after(limits.SMALL_CALL_S):
                        return await call(endpoint)
                except TimeoutError:
                    failure: RemudaError = Unreached(
                        f"no answer from {endpoint.registry} within {limits.SMALL_CALL_S:g} s"
                    )
                except (*_ELSEWHERE, ContentRefused) as error:
                    failure = error
                    unusable = error if isinstance(error, Misconfigured) else unusable
                if endpoint is not endpoints[-1]:
                    log.warning("mirror_skipped", mirror=endpoint.registry, reason=failure.message)
            if not isinstance(failure, RegistryFailed):
                raise failure
            if unusable is not None:
                raise unusable
            await retries.pause(failure)

    @asynccontextmanager
    async def _exchange(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        reference: Reference,
        headers: Mapping[str, str],
        *,
        what: str = "",
        expected: tuple[int, ...] = (200,),
    ) -> AsyncIterator[Response]:
        """One answered request, with whatever authorization it takes."""
        url = endpoint.base.joinpath("v2", *path.split("/"))
        scope = pull_scope(reference.repository)
        authorization = self._authorizer.known(endpoint.registry, scope)
        async with AsyncExitStack() as stack:
            request = self.transport.request(method, url, headers=headers, authorization=authorization)
            answer = await stack.enter_async_context(request)
            # Only the registry itself may ask who we are, not the storage that it sends us to.
            if answer.status == 401 and answer.url.origin() == url.origin():
                challenge = answer.headers.get("WWW-Authenticate", "")
                await stack.aclose()
                authorization = await self._authorizer.answer(
                    endpoint.registry, scope, authorization, challenge, endpoint.base
                )
                request = self.transport.request(method, url, headers=headers, authorization=authorization)
                answer = await stack.enter_async_context(request)
            if answer.status not in expected:
                await raise_for_status(answer, what or str(reference), self.clock.now())
            yield answer

    async def _ask_for_token(self, form: Form) -> bytes:
        post = form.method == "POST"
        url = form.url if post else form.url.update_query(form.fields)
        request = self.transport.request(
            form.method,
            url,
            authorization=form.authorization,
            form=form.fields if post else None,
            named_by=form.named_by,
        )
        try:
            with anyio.fail_after(limits.SMALL_CALL_S):
                async with request as answer:
                    if answer.status != 200:
                        await raise_for_status(answer, f"a token of {url.host}", self.clock.now())
                    return await answer.body(limits.TOKEN_BYTES_MAX, "a token")
        except TimeoutError as error:
            raise RegistryFailed(
                f"no answer from the token server {url.host} within {limits.SMALL_CALL_S:g} s"
            ) from error


_ELSEWHERE = (RegistryFailed, NotFound, Unauthorized, Forbidden, Misconfigured)
"""Failures after which another place may still have what is wanted."""


@asynccontextmanager
async def open_client(
    clock: Clock,
    entropy: Entropy,
    *,
    registries: Registries | None = None,
    keys: Keys | None = None,
    retry: RetryPolicy | None = None,
    idle_read_s: float = limits.IDLE_READ_S,
    through_proxies: bool = True,
) -> AsyncIterator[RegistryClient]:
    """A client whose connections are gone when the block ends."""
    registries = registries or Registries()
    async with open_transport(
        registries, through_proxies=through_proxies, idle_read_s=idle_read_s
    ) as transport:
        yield RegistryClient(transport, registries, keys or NoKeys(), clock, entropy, retry or RetryPolicy())


def _manifest_path(reference: Reference) -> str:
    return f"{reference.repository}/manifests/{reference.version}"
