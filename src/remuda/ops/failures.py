"""Which failures are permanent, so that retrying is useless until something changes. Pure."""

from dataclasses import replace
from typing import Final

from remuda.core.errors import Internal, Problem, RemudaError, RolledBack, StartFailed

# Codes of workers' errors that a further attempt cannot change.
_PERMANENT: Final = frozenset(
    {
        "archive_refused",
        "invalid",
        "misconfigured",
        "not_a_backend",
        "not_found",
        "platform_missing",
        "rejected",
        RolledBack.code,
        "signature_required",
        "unauthorized",
    }
)
# The files are in place, and the process did not come up: that they are listed proves nothing.
START_FAILED: Final = StartFailed.code
# Most likely permanent as well, but a proxy that damages bytes, a signed address that has expired or a
# machine that is busy for a minute looks the same: these are tried a few times.
LIKELY_PERMANENT: Final = frozenset({"content_refused", "forbidden", START_FAILED})
# What a worker itself said of an install or upgrade. Other codes are of this side: nothing was heard of it.
_WORKERS_OWN: Final = frozenset({"install_failed", "upgrade_failed"}) | LIKELY_PERMANENT

# LocalAI's workers send no code. These are words of the container library that they pull with.
_SAID_BY_PEERS: Final = (
    ("server gave HTTP response to HTTPS client", "misconfigured"),
    ("x509: ", "misconfigured"),
    ("MANIFEST_UNKNOWN", "not_found"),
    ("NAME_UNKNOWN", "not_found"),
    ("UNAUTHORIZED", "unauthorized"),
    ("DENIED", "forbidden"),
    ("no child with platform", "platform_missing"),
)
_HINTS: Final = {
    "misconfigured": "fix the cause on that node, then retry",
    "unauthorized": "log in to the registry on that node (`docker login`), then retry",
    "forbidden": "log in to the registry on that node as a user who may read the image, then retry",
    "archive_refused": "push a build whose layers can be unpacked, then start a new operation",
    "not_a_backend": "push a build that has run.sh or remuda.yaml at its root, then start a new operation",
    "not_found": "check the name and tag, then start a new operation",
    "platform_missing": "install a backend that has a build for that node, or leave the node out",
    RolledBack.code: "install a build that starts",
    "content_refused": "the registry or something in between is broken: push the image again, or use another "
    "source",
}
_START_HINT: Final = "look at the backend's log on that node, fix the cause, then retry"
_HINT: Final = "fix the cause, then retry"
_DEFECT_CHARS_MAX: Final = 400


def answered(problem: Problem) -> bool:
    """Whether the worker itself said that the install or upgrade failed."""
    return problem.code in _WORKERS_OWN


def start_failed(problem: Problem | None) -> bool:
    return problem is not None and problem.code == START_FAILED


def did_not_start(error: str) -> Problem:
    return Problem(START_FAILED, f"installed, but {error}", hint=_START_HINT, retryable=True)


def defect(error: Exception) -> Problem:
    """Of an attempt that a bug of ours ended: the same would end the next one."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, RemudaError):
        return error.problem()
    text = " ".join(str(error).split())[:_DEFECT_CHARS_MAX]
    return Problem(
        Internal.code,
        f"it broke off on a defect of Remuda: {type(error).__name__}{text and f': {text}'}",
        hint="please report it, with the log of the frontend around it",
    )


def classified(failed: Problem, code: str, error: str) -> Problem:
    """The failure with the worker's own code where that decides whether another attempt may help."""
    if code == START_FAILED:
        return did_not_start(error)
    code = code or next((known for words, known in _SAID_BY_PEERS if words in error), "")
    if code not in _PERMANENT and code not in LIKELY_PERMANENT:
        return failed
    # Our workers end their sentence with a hint of their own.
    hint = "" if error.endswith(")") else _HINTS.get(code, _HINT)
    return replace(failed, code=code, hint=hint, retryable=code in LIKELY_PERMANENT)
