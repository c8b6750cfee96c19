"""References to images, as text: which texts are references, which mean the same image, and how LocalAI's
workers have to be given them. Pure. Pulling images needs more than this: see `oci.reference`."""

import re
from typing import Final

from remuda.gallery.model import BUILTIN

_SCHEME: Final = "oci://"
_DEFAULT_REGISTRY: Final = "docker.io"
_NOT_AN_IMAGE: Final = re.compile(rf"{BUILTIN}|https?:|file:|ocifile:|[./~]")
# The only bare references that LocalAI's workers take for images.
_KNOWN_TO_PEERS: Final = (_SCHEME, "quay.io", "ghcr.io", "docker.io")


def is_image(uri: str) -> bool:
    """It names an image in a registry: no archive, no place on a disk, and nothing that ships with Remuda."""
    return "/" in uri and not _NOT_AN_IMAGE.match(uri)


def for_peers(uri: str) -> str:
    """The reference as LocalAI's workers understand it. Where they know the registry it stays as it is: they
    record no digest of an image that is written with oci://."""
    if not is_image(uri) or uri.startswith(_KNOWN_TO_PEERS):
        return uri
    return f"{_SCHEME}{uri}"


def same_source(one: str, other: str) -> bool:
    """Both mean the same tag, digest, archive or place, though one may be written in full."""
    return canonical(one) == canonical(other)


def canonical(uri: str) -> str:
    """The one form of all that mean the same: of an image its registry, path and tag or digest, all written
    out, and no scheme; anything else as it is."""
    return "".join(_parts(uri)) if is_image(uri) else uri


def same_repository(one: str, other: str) -> bool:
    return repository(one) == repository(other)


def repository(uri: str) -> str:
    """Of an image its registry and path, without tag and digest; of anything else the text itself."""
    return _parts(uri)[0] if is_image(uri) else uri


def registry(uri: str) -> str:
    """The host that has an image."""
    return repository(uri).partition("/")[0]


def _parts(uri: str) -> tuple[str, str]:
    """Registry and path; tag and digest, as they are written after them."""
    name, at, digest = uri.strip().removeprefix(_SCHEME).partition("@")
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = _DEFAULT_REGISTRY, name
    path, _, tag = rest.partition(":")
    if first == _DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    version = f"@{digest}" if at else f":{tag or 'latest'}"
    return f"{first.lower()}/{path}", version
