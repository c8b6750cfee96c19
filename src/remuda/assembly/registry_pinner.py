"""Asks OCI registries what a tag stands for. It never fails: what cannot be had now stays empty."""

from typing import Final

import anyio
import structlog

from remuda.core.errors import Forbidden, Invalid, NotFound, RemudaError, Unauthorized
from remuda.oci.client import RegistryClient
from remuda.oci.errors import PlatformMissing
from remuda.oci.model import Platform
from remuda.oci.reference import OciImage, Reference, parse_source
from remuda.ops.ports import Build, Pin

log = structlog.get_logger(__name__)

_ASK_S: Final = 4.0


class RegistryPinner:
    """Implements ops.ports.Pinner."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client

    async def pin(self, build: Build) -> Pin:
        reference = _image(build.uri)
        if reference is None:
            return Pin()
        try:
            with anyio.fail_after(_ASK_S):
                return Pin(await self._digest(reference, build.platform))
        except PlatformMissing as error:
            return Pin(missing=error.message)
        except NotFound:
            return Pin(trouble=f"{reference} does not exist in the registry", refused=True)
        except (Unauthorized, Forbidden):
            words = f"access to {reference} was denied: the image is private or does not exist"
            return Pin(trouble=words, refused=True)
        except (RemudaError, TimeoutError) as error:
            trouble = f"no answer within {_ASK_S:g} s" if isinstance(error, TimeoutError) else error.message
            log.info("tag_not_pinned", image=str(reference), reason=trouble)
            return Pin(trouble=trouble)

    async def _digest(self, reference: Reference, platform: str) -> str:
        if not platform:
            return await self._client.digest_of(reference)
        os, _, architecture = platform.partition("/")
        return (await self._client.image(reference, Platform(os, architecture))).digest


def _image(uri: str) -> Reference | None:
    try:
        source = parse_source(uri)
    except Invalid:
        return None
    return source.reference if isinstance(source, OciImage) else None
