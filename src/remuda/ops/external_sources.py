"""Sources outside the galleries: which are allowed, and what their backends are called. Pure."""

import re
from dataclasses import dataclass, replace
from typing import Final

from remuda.core.errors import Invalid
from remuda.gallery.references import canonical, for_peers
from remuda.ops.model import Source

_IMAGE: Final = re.compile(
    r"(?:oci://)?(?:[A-Za-z0-9][A-Za-z0-9._-]*(?::\d{1,5})?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,128})?"
)
_ARCHIVE: Final = re.compile(r"https?://[^/\s?#]+/\S+")
_BACKEND_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")


@dataclass(frozen=True, slots=True)
class External:
    source: Source
    image: bool
    peer_source: Source | None  # The form for LocalAI's workers; None: they cannot install it.


def external(source: Source, *, local_sources: bool) -> External:
    """The source with its names filled in and its reference in one form, so that the same wish is recognised
    however it is written. Invalid for a kind of place that is not allowed, or unreadable."""
    uri = source.uri.strip()
    local = uri.startswith(("file:", "ocifile:", "/", "./", "../", "~"))
    if local and not local_sources:
        raise Invalid(
            f"{uri[:200]!r} is a path on each node's own disk, which is not allowed",
            hint="use an image in a registry, or allow it with --allow-local-sources",
        )
    archive = not local and bool(_ARCHIVE.fullmatch(uri))
    image = not local and not archive
    if image and not ("/" in uri and _IMAGE.fullmatch(uri)):
        raise Invalid(
            f"{uri[:200]!r} is neither an image in a registry nor the address of an archive",
            hint="write it like quay.io/me/my-backend:latest",
        )
    name = source.name or source.backend or _own_name(uri)
    for field, word in (("name", name), ("alias", source.alias)):
        if word and not _BACKEND_NAME.fullmatch(word):
            raise Invalid(
                f"{field}: {word[:80]!r} is not a valid backend name", hint="use letters, digits and -._"
            )
    uri = canonical(uri)
    # What is asked for, and what it is called once it is there, must be the same to workers.
    named = replace(source, uri=uri, backend=name, name=name)
    return External(named, image, None if archive else replace(named, uri=for_peers(uri)))


def as_named_now(source: Source) -> Source:
    """The source of an install that an earlier release has stored as it was given, with the names and the
    reference that it would be stored with now."""
    try:
        return external(source, local_sources=True).source if source.uri else source
    except Invalid:
        return source


def _own_name(uri: str) -> str:
    last = uri.partition("@")[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"(\.tar)?(\.(tar|gz|tgz|zst|xz))?$", "", last.partition(":")[0])
