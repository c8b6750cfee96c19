"""Notes which modules of remuda a Python process enters, between SIGUSR1 and SIGUSR2.

Python imports a module of this name at its start; `tools.journeys` puts this folder on the path of the
processes it watches.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

_folder = os.environ.get("TRACING_FOLDER", "")
_entered: set[str] = set()
_recording = False
_written = 0


def _note(frame: FrameType, event: str, _: object) -> None:
    if _recording and event == "call":
        _entered.add(frame.f_globals.get("__name__", ""))


def _begin(*_: object) -> None:
    global _recording
    _entered.clear()
    _recording = True


def _end(*_: object) -> None:
    global _recording, _written
    _recording = False
    _written += 1
    modules = sorted(name for name in set(_entered) if name.startswith("remuda."))
    written = Path(_folder) / f"{os.getpid()}-{_written}.json"
    unfinished = written.with_suffix(".part")
    unfinished.write_text(json.dumps({"argv": sys.argv, "modules": modules}))
    unfinished.rename(written)


if _folder:
    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _end)
    threading.setprofile(_note)
    sys.setprofile(_note)
