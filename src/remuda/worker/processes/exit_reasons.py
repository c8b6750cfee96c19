"""How a process ended, in words, with the likely cause. Pure."""

import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_MISSING_LIBRARY = re.compile(
    r"(?:error while loading shared libraries:|Library not loaded:)\s*(\S+?):?(?:\s|$)"
)
_MISSING_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): (.+)")
_PORT_IN_USE = re.compile(r"address already in use|failed to bind|port \d+ is in use", re.IGNORECASE)
_NO_MEMORY = re.compile(
    r"out of memory|bad_alloc|cannot allocate memory|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError|MemoryError",
    re.IGNORECASE,
)
_WRONG_FORMAT = re.compile(r"exec format error|cannot execute binary file", re.IGNORECASE)
_OLD_DRIVER = re.compile(
    r"CUDA driver version is insufficient|forward compatibility was attempted", re.IGNORECASE
)
_OLD_LIBC = re.compile(r"version [`'](GLIBC\w*_[\d.]+)' not found")
_ENGINE_ENDED = re.compile(r" stopping reason=(['\"])(the engine was ended by (.+))\1$", re.MULTILINE)
_OOM = {
    True: "out of memory: the kernel's OOM killer was at work; stop another model on this node, or use a "
    "smaller one",
    False: "by another program, as the kernel has counted no out-of-memory kill",
    None: "by the kernel when memory ran out, or by another program (see the kernel's log)",
}
_LAST_LINES = "; its last lines:"
_NOT_READY = " before it became ready"


@dataclass(frozen=True, slots=True)
class Ended:
    """The process is no more. `code` is minus the signal's number if a signal ended it."""

    code: int


@dataclass(frozen=True, slots=True)
class Useless:
    """The process lives, but will not serve."""

    words: str


@dataclass(frozen=True, slots=True)
class PortLost:
    """Another program took the port before the process could. `code` is None of one that lived on."""

    port: int
    code: int | None = None


Over = Ended | Useless | PortLost


def describe_end(over: Over, stderr: Sequence[str], *, was_ready: bool, oom: bool | None = None) -> str:
    """The whole story: what happened, the likely cause, and the last lines it wrote. `oom`: whether the
    kernel's out-of-memory killer was at work meanwhile; None when that is not known."""
    match over:
        case Ended(code):
            what = how(code) + ("" if was_ready else _NOT_READY)
            cause = likely_cause(code, stderr, oom)
        case Useless(what):
            cause = likely_cause(None, stderr, oom)
        case PortLost(port, code):
            what = "did not get its port" if code is None else how(code) + _NOT_READY
            cause = f"another program took port {port}"
    lines = "".join(f"\n  {line}" for line in stderr)
    return f"it {what}{cause and f': {cause}'}{lines and f'{_LAST_LINES}{lines}'}"


def without_lines(story: str) -> str:
    """What `describe_end` tells, short enough to be reported again and again."""
    return story.partition(_LAST_LINES)[0]


def how(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def port_in_use(stderr: Sequence[str]) -> bool:
    """Whether its words are those of one who finds an address taken."""
    return _PORT_IN_USE.search("\n".join(stderr)) is not None


def likely_cause(code: int | None, stderr: Sequence[str], oom: bool | None = None) -> str:
    """What a person should look at, or nothing when it cannot be guessed. `code` is None while it lives."""
    text = "\n".join(stderr)
    engine = _ENGINE_ENDED.search(text)
    return _by_engine(engine, text, oom) if engine else _by_words(text) or _by_code(code, oom)


def _by_engine(ended: re.Match[str], text: str, oom: bool | None) -> str:
    """A built-in backend ends because its engine did, a process of its own."""
    what, by = ended[2], signal.Signals.__members__.get(ended[3])
    cause = "" if by is None else _by_words(text) or _by_code(-by, oom)
    return f"{what} ({cause})" if cause else what


def _by_words(text: str) -> str:
    if found := _OLD_LIBC.search(text):
        return f"this build needs {found[1]}, and the system's C library is older; choose another build"
    if found := _MISSING_LIBRARY.search(text):
        return f"the library {found[1]} is missing; install it, or choose a build for this machine's hardware"
    if _WRONG_FORMAT.search(text):
        return "the program is for another processor architecture; choose a build for this machine's"
    if _OLD_DRIVER.search(text):
        return "the GPU driver is older than this build needs; upgrade the driver or choose an older build"
    if _NO_MEMORY.search(text):
        return "it ran out of memory; stop another model on this node, or use a smaller one"
    if _PORT_IN_USE.search(text):
        return "another program took its port; trying again uses another one"
    if found := _MISSING_MODULE.search(text):
        return f"its Python environment is incomplete ({found[1].strip()}); install the backend again"
    return ""


def _by_code(code: int | None, oom: bool | None) -> str:
    match code:
        case -9:  # SIGKILL
            return _OOM[oom]
        case -4:  # SIGILL
            return "its build uses instructions that this processor lacks; choose another build"
        case -11 | -6 | -7:  # SIGSEGV, SIGABRT, SIGBUS
            return "the program itself crashed; another version of the backend may help"
        case 126:
            return "its run file cannot be executed: wrong architecture, or no permission"
        case 127:
            return "a program or library that it needs is missing"
        case _:
            return ""
