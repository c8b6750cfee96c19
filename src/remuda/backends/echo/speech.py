"""Echo as its script wants it: start-up with the faults before the first call that the environment asks
for, and tokens emitted at the scripted times, with the scripted faults between them.
"""

import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

import anyio
import grpc

from remuda.backends.calls import Refused
from remuda.backends.echo.script import Script

_GARBAGE = b"\xff\xc3\x28"  # No text in UTF-8, whatever follows.


async def speak(script: Script, tokens: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """Each token as the script wants it sent, until the last one or a fault."""
    await anyio.sleep(script.delay_s)
    began = anyio.current_time()
    for count, token in enumerate(tokens):
        await _suffer(script, count)
        if script.tokens_per_s:
            await anyio.sleep_until(began + (count + 1) / script.tokens_per_s)
        message = _GARBAGE if script.garbage else token.encode()
        yield message if count else message.ljust(script.big_message_bytes, b".")
    await _suffer(script, len(tokens))


async def pause(script: Script) -> None:
    """What the script holds for calls that say nothing."""
    await anyio.sleep(script.delay_s)
    await _suffer(script, 0)


async def _suffer(script: Script, sent: int) -> None:
    """Whatever is due when so many tokens have been said."""
    if script.hang and script.hang_at_token == sent:
        await anyio.sleep_forever()
    if script.crash and script.crash_at_token == sent:
        die_by(script.crash)
    if script.fail and script.fail_at_token == sent:
        raise Refused(grpc.StatusCode[script.fail], f"failed after {sent} tokens, as told")


def die_by(end: str) -> None:
    """End this very moment: by the signal of that name, else with that exit code."""
    if end.isdigit():
        os._exit(int(end))
    os.kill(os.getpid(), signal.Signals[end])


DELAY_VARIABLE = "ECHO_START_DELAY_MS"
FAIL_VARIABLE = "ECHO_START_FAIL"
SIGNAL_VARIABLE = "ECHO_START_SIGNAL"
NEVER_READY_VARIABLE = "ECHO_NEVER_READY"


@dataclass(frozen=True, slots=True)
class Startup:
    ready: bool  # Whether Health will ever say so.


def begin(environ: Mapping[str, str]) -> Startup:
    """Wait, fail or die as the script says; returns where the process may go on."""
    if delay := environ.get(DELAY_VARIABLE):
        if not delay.isdigit():
            sys.exit(f"{DELAY_VARIABLE} is a whole number of milliseconds, not {delay!r}")
        threading.Event().wait(int(delay) / 1000)
    if reason := environ.get(FAIL_VARIABLE):
        sys.exit(reason)
    if name := environ.get(SIGNAL_VARIABLE):
        die_by(name)
    return Startup(ready=environ.get(NEVER_READY_VARIABLE, "").lower() not in ("true", "1"))
