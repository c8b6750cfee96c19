"""What a call to a backend says of its health, in words."""

import asyncio
from dataclasses import dataclass
from typing import Final

import anyio

HOST: Final = "127.0.0.1"
_PROBE_S: Final = 0.5
_WORDS_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class HealthResult:
    """How a backend took a health call. `refused`: nothing listens, so it is not merely busy."""

    healthy: bool = False
    refused: bool = False
    words: str = ""


async def nothing_listens(port: int) -> bool:
    try:
        with anyio.move_on_after(_PROBE_S):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def refused(port: int) -> HealthResult:
    return HealthResult(refused=True, words=f"nothing listens on port {port}")


def silent(port: int, limit_s: float) -> HealthResult:
    return HealthResult(words=f"no answer on port {port} within {limit_s:g} s")


def short(text: str) -> str:
    return text[:_WORDS_CHARS_MAX]
