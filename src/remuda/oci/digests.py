"""Digests of small documents held in memory. Pure."""

import hashlib

from remuda.oci.errors import ContentRefused


def digest_of_bytes(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def checked_digest(body: bytes, promised: str, what: str) -> str:
    """The digest, if the bytes have it; else ContentRefused."""
    algorithm = promised.partition(":")[0]
    actual = f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"
    if actual != promised:
        raise ContentRefused(f"{what} should have digest {promised} but has {actual}")
    return promised
