"""How unpacking fails. Every failure that is about one entry names it; the name is added in one place."""

from remuda.core.errors import Unavailable
from remuda.oci.errors import ContentRefused

SHOWN_CHARS_MAX = 200


class Refusal(Exception):
    """Why something may not be unpacked, told by code that does not know which entry it is about."""


class ArchiveRefused(ContentRefused):
    """An entry of the archive, or the archive itself, may not be unpacked. Trying again does not help."""


class UnpackFailed(Unavailable):
    """The file system refused a write, for another reason than being full."""


class UnpackCancelled(Exception):
    """The caller's own flag said to stop. What was unpacked so far is of no use."""


def shown(name: bytes) -> str:
    """A name from an archive, safe to print: no control characters, no broken encoding, not endless."""
    text = name.decode(errors="backslashreplace")
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
