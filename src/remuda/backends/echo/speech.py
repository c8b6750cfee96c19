"""Emits tokens at the scripted times, with the scripted faults between them."""

import os
import signal
from collections.abc import AsyncGenerator, Sequence

import anyio
import grpc

from remuda.backends.echo.script import Script
from remuda.backends.refusal import Refused

_GARBAGE = b"\xff\xc3\x28"  # No text in UTF-8, whatever follows.


async def speak(script: Script, tokens: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """Each token as the script wants it sent, until the last one or a fault."""
    await anyio.sleep(script.delay_s)
    began = anyio.current_time()
    for said, token in enumerate(tokens):
        await _suffer(script, said)
        if script.tokens_per_s:
            await anyio.sleep_until(began + (said + 1) / script.tokens_per_s)
        message = _GARBAGE if script.garbage else token.encode()
        yield message if said else message.ljust(script.big_message_bytes, b".")
    await _suffer(script, len(tokens))


async def pause(script: Script) -> None:
    """What the script holds for calls that say nothing."""
    await anyio.sleep(script.delay_s)
    await _suffer(script, 0)


async def _suffer(script: Script, said: int) -> None:
    """Whatever is due when so many tokens have been said."""
    if script.hang and script.hang_at_token == said:
        await anyio.sleep_forever()
    if script.crash and script.crash_at_token == said:
        die_by(script.crash)
    if script.fail and script.fail_at_token == said:
        raise Refused(grpc.StatusCode[script.fail], f"failed after {said} tokens, as told")


def die_by(end: str) -> None:
    """End this very moment: by the signal of that name, else with that exit code."""
    if end.isdigit():
        os._exit(int(end))
    os.kill(os.getpid(), signal.Signals[end])
