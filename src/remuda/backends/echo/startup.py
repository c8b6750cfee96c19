"""Start-up of echo, with the faults before the first call that the environment asks for."""

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from remuda.backends.echo.speech import die_by

DELAY_VARIABLE = "ECHO_START_DELAY_MS"
FAIL_VARIABLE = "ECHO_START_FAIL"
SIGNAL_VARIABLE = "ECHO_START_SIGNAL"
NEVER_READY_VARIABLE = "ECHO_NEVER_READY"


@dataclass(frozen=True, slots=True)
class Startup:
    ready: bool  # Whether Health will ever say so.


def begin(environ: Mapping[str, str]) -> Startup:
    """Wait, fail or die as told; returns where the process may go on."""
    if delay := environ.get(DELAY_VARIABLE):
        if not delay.isdigit():
            sys.exit(f"{DELAY_VARIABLE} is a whole number of milliseconds, not {delay!r}")
        threading.Event().wait(int(delay) / 1000)
    if reason := environ.get(FAIL_VARIABLE):
        sys.exit(reason)
    if name := environ.get(SIGNAL_VARIABLE):
        die_by(name)
    return Startup(ready=environ.get(NEVER_READY_VARIABLE, "").lower() not in ("true", "1"))
