"""How an answer can fail, once a replica has been chosen."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from remuda.core.errors import Forbidden, PeerFailed

HIDDEN: Final = "***"
SECRET_CHARS_MIN: Final = 6  # Shorter ones are keys in name only, and stand in ordinary words.


class Fault(StrEnum):
    UNREACHABLE = "unreachable"  # No connection, or lost before anything was said: it never began.
    BROKE = "broke"  # The replica went away, or answered what cannot be understood.
    NOT_LOADED = "not_loaded"  # It is there and has no model, or another one.
    REFUSED = "refused"  # It will not do this; no other replica would either.
    FAILED = "failed"  # It tried and says that it could not.
    SILENT = "silent"  # It said nothing for too long.


class UpstreamFailed(PeerFailed):
    """`status` is what the client gets. `unsent`: the replica has not got the request, or not all of it.
    `mute`: it took the connection, and said nothing on it."""

    code = "backend_failed"

    def __init__(
        self,
        fault: Fault,
        message: str,
        *,
        status: int = 502,
        hint: str = "",
        unsent: bool = False,
        mute: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.fault = fault
        self.mute = mute
        self.status = status
        self.unprocessed = unsent or fault is Fault.NOT_LOADED

    def hide(self, secret: str) -> None:
        """Take out of all words what a server may have repeated of the key that it was sent."""
        if len(secret) < SECRET_CHARS_MIN or secret not in f"{self.message}{self.hint}{self.public}":
            return
        self.message, self.hint, self.public = (
            words.replace(secret, HIDDEN) for words in (self.message, self.hint, self.public)
        )
        self.args = (self.message,)

    @property
    def elsewhere(self) -> bool:
        """Another replica may do better."""
        return self.fault in (Fault.UNREACHABLE, Fault.BROKE, Fault.NOT_LOADED)


class ContextExceeded(UpstreamFailed):
    """The request has more tokens than the model takes. OpenAI's own code."""

    code = "context_length_exceeded"
    retryable = False

    def __init__(
        self, message: str, *, advice: str = "send fewer, or: remuda models add FILE.gguf --context TOKENS"
    ) -> None:
        super().__init__(Fault.REFUSED, f"{message}; {advice}", status=400)
        self._facts = message

    def of_server(self, server: str) -> "ContextExceeded":
        """The same, where the context is not ours to set."""
        return ContextExceeded(self._facts, advice=f"send fewer: it is the server {server} that bounds them")


class InputUnsupported(UpstreamFailed):
    """The request shows or plays something to a model that does not take it."""

    code = "unsupported_input"
    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(Fault.REFUSED, message, status=400)


class RequestUnsupported(UpstreamFailed):
    """The model's backend does not do this kind of request."""

    code = "unsupported_request"
    retryable = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(Fault.REFUSED, message, status=400, hint=hint)


_ASKED_AT: Final = {
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "image": "/v1/images/generations",
    "transcript": "/v1/audio/transcriptions",
    "tts": "/v1/audio/speech",
}


def check_writes_text(model: str, usecases: Sequence[str]) -> None:
    """RequestUnsupported for a model that is known to be for other requests only: its engine would produce
    some text all the same. Uses that are not known may be anything."""
    if usecases and all(use in _ASKED_AT for use in usecases):
        paths = " or ".join(_ASKED_AT[use] for use in usecases)
        what = " and ".join(usecases)
        raise RequestUnsupported(f"{model} is for {what}, and writes no text", hint=f"POST {paths}")


class RateLimited(UpstreamFailed):
    """A server says that it is asked too often: it has done nothing for this request."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(Fault.NOT_LOADED, message, status=429)
        self.retry_after_s = retry_after_s


class Unaffordable(UpstreamFailed):
    """A server's budget does not allow this request. Another server may have it."""

    code = "insufficient_quota"
    retryable = False

    def __init__(self, message: str, *, hint: str = "", status: int = 429) -> None:
        super().__init__(Fault.REFUSED, message, status=status, hint=hint)

    @property
    def elsewhere(self) -> bool:
        return True


class Unlimited(Unaffordable):
    """The request says of no limit up to which it would be paid for."""

    code = "invalid"
    param = "max_tokens"

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint, status=400)


class Unpriced(Unaffordable):
    """The model has no price, so that it may not be used: it is not the client's to change, and
    trying again is of no use."""

    code = Forbidden.code

    def __init__(self, message: str) -> None:
        super().__init__(message, status=Forbidden.http_status)


class Unpriceable(Unaffordable):
    """A field of the request may have the server charge more than the price, or another model answer."""

    code = "invalid"

    def __init__(self, server: str, name: str) -> None:
        words = f"the server {server} is paid by the token, and the field {name!r} may change what it charges"
        hint = f"send no {name}, or ask a model on a server without a price"
        super().__init__(words, hint=hint, status=400)
        self.param = name
        self.unprocessed = True


class Unmetered(Unaffordable):
    """What a request of this kind costs on a server that is paid for is not known before it is answered."""

    code = RequestUnsupported.code

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint, status=400)


_CONTEXT: Final = re.compile(
    r"exceeds? (?:the )?(?:available |maximum |model's )*context"
    r"|context (?:size|length|window) (?:has been )?exceeded"
    r"|maximum context length is|too large to process|exceed_context_size"
    r"|prompt is too long|tokens do not fit the context",
    re.IGNORECASE,
)
_INPUT: Final = re.compile(
    r"(?:image|audio|video|multimodal|media) (?:input|data|content)s? (?:is|are) not supported"
    r"|(?:is not a|not a) multimodal model|does not support (?:image|audio|video|multimodal)",
    re.IGNORECASE,
)


_ASKED_AND_TAKEN: Final = re.compile(r"\((\d+) tokens\).*\((\d+) tokens\)", re.DOTALL)
_TAKEN_AND_ASKED: Final = re.compile(
    r"maximum context length is (\d+) tokens.*(?:requested|resulted in) (\d+) tokens", re.DOTALL
)
_ASKED_THEN_TAKEN: Final = re.compile(r"(\d+) tokens (?:> |do not fit the context of )(\d+)")
_PROJECTORS: Final = {
    "image": ("images", "a vision"),
    "audio": ("audio", "an audio"),
    "video": ("video", "a vision"),
}


def clients_fault(words: str, model: str, message: str) -> UpstreamFailed | None:
    """The failure that is the request's own doing, by a backend's words; None: it is another one. Backends
    have no status of their own for these, and some say that they themselves failed. `message` is for words
    without figures."""
    if _CONTEXT.search(words):
        return ContextExceeded(_too_many(words) or message)
    if found := _INPUT.search(words):
        return InputUnsupported(f"{model} {_not_taken(found[0].lower())}")
    return None


def _too_many(words: str) -> str:
    """How many tokens there are, and how many the model takes; empty: the words do not say."""
    if (found := _ASKED_AND_TAKEN.search(words)) or (found := _ASKED_THEN_TAKEN.search(words)):
        requested, taken = found[1], found[2]
    elif found := _TAKEN_AND_ASKED.search(words):
        taken, requested = found[1], found[2]
    else:
        return ""
    return f"{requested} tokens do not fit the context of {taken}"


def _not_taken(words: str) -> str:
    named = next((found for word, found in _PROJECTORS.items() if word in words), None)
    if named is None:
        return "takes text only; other input needs a model with an mmproj file"
    media, projector = named
    return f"does not take {media}: that needs a model with {projector} projector (an mmproj file)"
