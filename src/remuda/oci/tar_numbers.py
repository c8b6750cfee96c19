"""Numbers as tar archives write them. [pure]. What is not exactly one of the known forms is refused."""

import re

from remuda.oci.unpack_errors import Refusal

OCTAL = re.compile(rb"[ \0]*([0-7]*)[ \0]*\Z")
DECIMAL = re.compile(rb"[0-9]{1,19}\Z")
INSTANT = re.compile(rb"(-?)([0-9]{1,19})(?:\.([0-9]*))?\Z")

BASE_256 = 0x80
NEGATIVE = 0x40
SECOND_NS = 1_000_000_000
# What file systems keep without wrapping around: 1901 to 2446.
EARLIEST_NS = -(1 << 31) * SECOND_NS
LATEST_NS = ((1 << 34) - (1 << 31) - 1) * SECOND_NS


def number(field: bytes, what: str) -> int:
    """A header field of octal digits or, where those would not do, of base 256. Never negative."""
    value = signed_number(field, what)
    if value < 0:
        raise Refusal(f"its {what} is negative")
    return value


def signed_number(field: bytes, what: str) -> int:
    if field[0] & BASE_256:
        magnitude = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 2)) - 1)
        return magnitude - (1 << (8 * len(field) - 2)) if field[0] & NEGATIVE else magnitude
    match = OCTAL.match(field)
    if match is None:
        raise Refusal(f"its {what} is not a number")
    return int(match[1] or b"0", 8)


def decimal(text: bytes, what: str) -> int:
    """A pax value that must be a whole number."""
    if DECIMAL.match(text) is None:
        raise Refusal(f"its {what} is not a number")
    return int(text)


def instant_ns(text: bytes) -> int:
    """A pax time: seconds, perhaps with a fraction of any length."""
    match = INSTANT.match(text)
    if match is None:
        raise Refusal("its modification time is not a number")
    fraction = int((match[3] or b"").ljust(9, b"0")[:9])
    value = int(match[2]) * SECOND_NS + fraction
    return -value if match[1] else value


def clamped_ns(instant: int) -> int:
    """A time that every file system can keep."""
    return max(EARLIEST_NS, min(instant, LATEST_NS))
