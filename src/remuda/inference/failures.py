"""How an answer can fail, once a replica has been chosen."""

import re
from enum import StrEnum
from typing import Final

from remuda.core.errors import PeerFailed


class Fault(StrEnum):
    UNREACHABLE = "unreachable"  # No connection, or lost before anything was said: it never began.
    BROKE = "broke"  # The replica went away, or answered what cannot be understood.
    NOT_LOADED = "not_loaded"  # It is there and has no model, or another one.
    REFUSED = "refused"  # It will not do this; no other replica would either.
    FAILED = "failed"  # It tried and says that it could not.
    SILENT = "silent"  # It said nothing for too long.


class UpstreamFailed(PeerFailed):
    """`status` is what the client gets."""

    code = "backend_failed"

    def __init__(self, fault: Fault, message: str, *, status: int = 502, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.fault = fault
        self.status = status

    @property
    def elsewhere(self) -> bool:
        """Another replica may do better."""
        return self.fault in (Fault.UNREACHABLE, Fault.BROKE, Fault.NOT_LOADED)


class ContextExceeded(UpstreamFailed):
    """The request has more tokens than the model takes. OpenAI's own code."""

    code = "context_length_exceeded"
    retryable = False

    def __init__(self, message: str) -> None:
        hint = (
            "send fewer tokens, or raise context_size in the model's YAML (for a model "
            "added from a GGUF file: remuda models add FILE.gguf --context TOKENS)"
        )
        super().__init__(Fault.REFUSED, message, status=400, hint=hint)


class InputUnsupported(UpstreamFailed):
    """The request shows or plays something to a model that takes text only."""

    code = "unsupported_input"
    retryable = False

    def __init__(self, message: str) -> None:
        hint = "ask a model that takes such input; a GGUF model needs its mmproj file for it"
        super().__init__(Fault.REFUSED, message, status=400, hint=hint)


_CONTEXT: Final = re.compile(
    r"exceeds? (?:the )?(?:available |maximum |model's )*context"
    r"|context (?:size|length|window) (?:has been )?exceeded"
    r"|maximum context length is|too large to process|exceed_context_size",
    re.IGNORECASE,
)
_INPUT: Final = re.compile(
    r"(?:image|audio|video|multimodal|media) (?:input|data|content)s? (?:is|are) not supported"
    r"|(?:is not a|not a) multimodal model|does not support (?:image|audio|video|multimodal)",
    re.IGNORECASE,
)


def clients_fault(words: str, message: str) -> UpstreamFailed | None:
    """The failure that is the request's own doing, by a backend's words; None: it is another one. Backends
    have no status of their own for these, and some say that they themselves failed."""
    if _CONTEXT.search(words):
        return ContextExceeded(message)
    return InputUnsupported(message) if _INPUT.search(words) else None
