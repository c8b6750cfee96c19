"""Where the bytes of a build may be had, in the order in which to try. Pure."""

import re
from typing import Final

from remuda.gallery.model import BUILTIN, Entry

_RELEASED: Final = "latest-"
_NIGHTLY: Final = "master-"
_DEVELOPMENT: Final = "-development"
_NOT_AN_IMAGE: Final = re.compile(rf"{BUILTIN}|https?://|file:|ocifile://|[./~]")


def uris(entry: Entry) -> tuple[str, ...]:
    """The entry's own URI, its mirrors, then the nightly image and that image's development form.

    Published indexes name images that were never pushed under their release tag: hence the last two.
    """
    chain = [entry.uri, *entry.mirrors, *_nightly(entry.uri)]
    return tuple(dict.fromkeys(uri for uri in chain if uri))


def _nightly(uri: str) -> tuple[str, ...]:
    """Only a tag is rewritten: a host or a repository may be called `latest-` too, and a digest is final."""
    repository, colon, tag = uri.rpartition(":")
    if _NOT_AN_IMAGE.match(uri) or not colon or "/" in tag or "@" in repository or _RELEASED not in tag:
        return ()
    nightly = f"{repository}:{tag.replace(_RELEASED, _NIGHTLY, 1)}"
    return nightly, nightly + _DEVELOPMENT
